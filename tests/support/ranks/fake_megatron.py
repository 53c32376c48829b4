"""MindSpeed and Megatron Core without an NPU: their public signatures, computed on CPU in plain torch.

Every call goes through the signature in tests/fixtures/megatron_core first, so one that does not bind
fails. What is behind it follows their documentation: parameters by Megatron's names in Megatron's
layouts, gradients that add up in `main_grad`, one optimizer over all of them.
"""

# B samples, S positions, H hidden, D width of a head, G key heads, R query heads of each

import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

FIXTURE = Path(__file__).parents[2] / "fixtures" / "megatron_core" / "0.12.1.txt"


def signatures() -> dict[str, inspect.Signature]:
    """Of each call, by its whole name."""
    found = {}
    for line in FIXTURE.read_text().splitlines():
        if not line.startswith("#"):
            name, _, arguments = line.partition("(")
            scope: dict[str, Any] = {}
            exec(f"def call({arguments}: ...", scope)
            found[name] = inspect.signature(scope["call"])
    return found


@contextmanager
def fake_megatron(*, rename: tuple[str, str] | None = None) -> Iterator[list[str]]:
    """Both packages can be imported; yields the names of the calls, in order.

    rename: an argument of the signatures and what it is called instead.
    """
    calls: list[str] = []
    declared = signatures()
    if rename is not None:
        declared = {name: _renamed(found, *rename) for name, found in declared.items()}
    world = _World(declared, calls)
    modules = world.modules()
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield calls
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        if world.joined and dist.is_initialized():
            dist.destroy_process_group()


class _World:
    """The state of both packages in one process."""

    def __init__(self, declared: dict[str, inspect.Signature], calls: list[str]) -> None:
        self.declared, self.calls, self.joined, self.seeded = declared, calls, False, False

    def modules(self) -> dict[str, ModuleType]:
        """Every module that is imported, packages among them."""
        offers: dict[str, Callable[..., Any]] = {
            "megatron.core.parallel_state.model_parallel_is_initialized": lambda _: self.joined,
            "megatron.core.parallel_state.initialize_model_parallel": self.join,
            "megatron.core.tensor_parallel.model_parallel_cuda_manual_seed": self.seed,
            "megatron.core.transformer.TransformerConfig": _namespace,
            "megatron.core.models.gpt.gpt_layer_specs.get_gpt_layer_local_spec": _namespace,
            "megatron.core.models.gpt.GPTModel": lambda given: GPTModel(self, given),
            "megatron.core.distributed.DistributedDataParallelConfig": _namespace,
            "megatron.core.distributed.DistributedDataParallel": lambda g: DataParallel(self, g),
            "megatron.core.distributed.finalize_model_grads": finalize_model_grads,
            "megatron.core.optimizer.OptimizerConfig": _namespace,
            "megatron.core.optimizer.get_megatron_optimizer": lambda given: Optimizer(self, given),
        }
        found = {"mindspeed": _module("mindspeed")}
        found["mindspeed.megatron_adaptor"] = _module("mindspeed.megatron_adaptor")
        for name, function in offers.items():
            *parents, last = name.split(".")
            for depth in range(1, len(parents) + 1):
                path = ".".join(parents[:depth])
                found.setdefault(path, _module(path))
            setattr(found[".".join(parents)], last, self.bound(name, function))
        return found

    def bound(self, name: str, function: Callable[[Any], Any]) -> Callable[..., Any]:
        """A call that must bind to the signature; `function` gets all arguments by name."""

        def call(*args: Any, **named: Any) -> Any:
            self.calls.append(name)
            given = self.declared[name].bind(*args, **named)
            given.apply_defaults()
            return function(SimpleNamespace(**given.arguments))

        return call

    def join(self, given: Any) -> None:
        assert dist.is_initialized(), "torch.distributed comes before Megatron's groups"
        assert given.tensor_model_parallel_size == given.pipeline_model_parallel_size == 1
        self.joined = True

    def seed(self, given: Any) -> None:
        assert self.joined, "the tracker of random states needs the groups"
        self.seeded = True


class GPTModel(nn.Module):
    """A dense decoder; `given`: the constructor's arguments."""

    def __init__(self, world: _World, given: Any) -> None:
        super().__init__()
        assert world.seeded, "parameters are drawn from the tracker's random state"
        assert given.position_embedding_type == "rope" and not given.parallel_output
        config = given.config
        assert config.normalization == "RMSNorm" and config.gated_linear_unit
        assert config.qk_layernorm == given.transformer_layer_spec.qk_layernorm
        assert config.hidden_dropout == config.attention_dropout == 0.0, "no dropout in RL"
        self._world, self._given, self.config = world, given, config
        self.embedding: Any = nn.Module()
        self.embedding.word_embeddings = nn.Embedding(given.vocab_size, config.hidden_size)
        self.decoder: Any = nn.Module()
        self.decoder.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.decoder.final_layernorm = _norm(config, config.hidden_size)
        if not given.share_embeddings_and_output_weights:
            self.output_layer: Any = nn.Linear(config.hidden_size, given.vocab_size, bias=False)

    def forward(self, *args: Any, **named: Any) -> Tensor:
        """Logits [B, S, V]."""
        name = "megatron.core.models.gpt.GPTModel.forward"
        logits: Tensor = self._world.bound(name, self._logits)(*args, **named)
        return logits

    def _logits(self, given: Any) -> Tensor:
        assert given.labels is None and given.attention_mask is None
        hidden_BSH = self.embedding.word_embeddings(given.input_ids)
        turns = _turns(given.position_ids, self.config.kv_channels, self._given.rotary_base)
        for layer in self.decoder.layers:
            hidden_BSH = layer(hidden_BSH, turns)
        shared = self._given.share_embeddings_and_output_weights
        output = self.embedding.word_embeddings if shared else self.output_layer
        return F.linear(self.decoder.final_layernorm(hidden_BSH), output.weight)


class Layer(nn.Module):
    """A block by Megatron's names."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._config, hidden, width = config, config.hidden_size, config.kv_channels
        heads, groups = config.num_attention_heads, config.num_query_groups
        self.input_layernorm: Any = _norm(config, hidden)
        self.self_attention: Any = nn.Module()
        self.self_attention.linear_qkv = nn.Linear(
            hidden, (heads + 2 * groups) * width, bias=config.add_qkv_bias
        )
        self.self_attention.linear_proj = nn.Linear(heads * width, hidden, bias=False)
        if config.qk_layernorm:
            self.self_attention.q_layernorm = _norm(config, width)
            self.self_attention.k_layernorm = _norm(config, width)
        self.pre_mlp_layernorm = _norm(config, hidden)
        self.mlp: Any = nn.Module()
        self.mlp.linear_fc1 = nn.Linear(hidden, 2 * config.ffn_hidden_size, bias=False)
        self.mlp.linear_fc2 = nn.Linear(config.ffn_hidden_size, hidden, bias=False)

    def forward(self, hidden_BSH: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Attention and feed-forward, each beside its residual."""
        hidden_BSH = hidden_BSH + self._attend(self.input_layernorm(hidden_BSH), turns)
        gate, up = self.mlp.linear_fc1(self.pre_mlp_layernorm(hidden_BSH)).chunk(2, -1)
        fed: Tensor = self.mlp.linear_fc2(self._config.activation_func(gate) * up)
        return hidden_BSH + fed

    def _attend(self, hidden_BSH: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        config, own = self._config, self.self_attention
        repeats = config.num_attention_heads // config.num_query_groups
        shape = (config.num_query_groups, repeats + 2, config.kv_channels)
        mixed_BSGRD = own.linear_qkv(hidden_BSH).unflatten(-1, shape)
        query, key, value = mixed_BSGRD.split([repeats, 1, 1], dim=3)
        if config.qk_layernorm:
            query, key = own.q_layernorm(query), own.k_layernorm(key)
        query, key = _rotate(query, turns), _rotate(key, turns)
        heads = [x.expand(*x.shape[:3], repeats, -1).flatten(2, 3) for x in (query, key, value)]
        query, key, value = (x.transpose(1, 2) for x in heads)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended: Tensor = own.linear_proj(out.transpose(1, 2).flatten(2))
        return attended


class DataParallel(nn.Module):
    """Adds every backward's gradients to `main_grad`, and takes them away from autograd."""

    def __init__(self, world: _World, given: Any) -> None:
        super().__init__()
        assert given.config.calculate_per_token_loss, "else gradients are means over the ranks"
        self._world, self.module = world, given.module
        for parameter in self.module.parameters():
            parameter.main_grad = torch.zeros_like(parameter)
            parameter.register_post_accumulate_grad_hook(self._collect)

    def forward(self, *args: Any, **named: Any) -> Tensor:
        """The model's."""
        logits: Tensor = self.module(*args, **named)
        return logits

    def zero_grad_buffer(self, *args: Any, **named: Any) -> None:
        """Set every `main_grad` to zero."""
        name = "megatron.core.distributed.DistributedDataParallel.zero_grad_buffer"
        self._world.bound(name, self._zero)(*args, **named)

    def _zero(self, given: Any) -> None:
        for parameter in self.module.parameters():
            parameter.main_grad.zero_()

    @staticmethod
    def _collect(parameter: nn.Parameter) -> None:
        parameter.main_grad += parameter.grad  # type: ignore[attr-defined]
        parameter.grad = None


def finalize_model_grads(given: Any) -> None:
    """Sum gradients and num_tokens over all ranks, then divide."""
    (model,) = given.model
    count = given.num_tokens.clone()
    dist.all_reduce(count)
    for parameter in model.module.parameters():
        dist.all_reduce(parameter.main_grad)
        parameter.main_grad /= max(int(count), 1)


class Optimizer:
    """AdamW over two groups, as Megatron makes them: `wd_mult` 0 for norms and biases."""

    def __init__(self, world: _World, given: Any) -> None:
        config, (model,) = given.config, given.model_chunks
        assert config.optimizer == "adam" and not config.use_distributed_optimizer
        parameters = list(model.module.parameters())
        self._world, self._parameters, self._clip = world, parameters, config.clip_grad
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "wd_mult": 1.0},
            {"params": [p for p in parameters if p.ndim < 2], "wd_mult": 0.0},
        ]
        self._adam = torch.optim.AdamW(
            groups,
            lr=config.lr,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the optimizer within."""
        return self._adam.param_groups

    def step(self, *args: Any, **named: Any) -> tuple[bool, float, None]:
        """Clip, then step."""
        name = "megatron.core.optimizer.MegatronOptimizer.step"
        done: tuple[bool, float, None] = self._world.bound(name, self._step)(*args, **named)
        return done

    def state_dict(self, *args: Any, **named: Any) -> dict[str, Any]:
        """Of the optimizer within."""
        name = "megatron.core.optimizer.MegatronOptimizer.state_dict"
        call = self._world.bound(name, lambda _: {"optimizer": self._adam.state_dict()})
        return dict(call(*args, **named))

    def load_state_dict(self, *args: Any, **named: Any) -> None:
        """What `state_dict` gave."""
        name = "megatron.core.optimizer.MegatronOptimizer.load_state_dict"

        def load(given: Any) -> None:
            self._adam.load_state_dict(given.state_dict["optimizer"])

        self._world.bound(name, load)(*args, **named)

    def _step(self, given: Any) -> tuple[bool, float, None]:
        for parameter in self._parameters:
            parameter.grad = parameter.main_grad.clone()
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self._clip))
        self._adam.step()
        self._adam.zero_grad()
        return True, norm, None


def _namespace(given: Any) -> Any:
    return given


def _module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    return module


def _renamed(signature: inspect.Signature, old: str, new: str) -> inspect.Signature:
    parameters = signature.parameters.values()
    return signature.replace(
        parameters=[p.replace(name=new) if p.name == old else p for p in parameters]
    )


def _norm(config: Any, width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=config.layernorm_epsilon)


def _turns(positions_BS: Tensor, width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, S, 1, 1, D]."""
    speeds = base ** -(torch.arange(0, width, 2) / width)
    angles = (positions_BS[..., None] * speeds).repeat(1, 1, 2)[:, :, None, None]
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * turns[0] + torch.cat((-second, first), -1) * turns[1]
