"""The update engine `mindspeed`: one Megatron optimizer step at a time, data parallel.

Made by `update_table` for `update.engine: mindspeed`. The loss is the algorithm's own, as with the
engine `torch`: undivided over micro-batches, whose gradients Megatron adds up in `main_grad`, sums over
ranks and divides by the global count.
"""

# T response tokens of all samples together

import io
import logging
import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rljob_runtime.devices.collectives import rank_of, size_of, sum_over_ranks
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import CheckpointError, ConfigError, WeightsError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import read_architecture
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.accumulation import NO_SAMPLES, LossFn
from rljob_runtime.update.learning_rate import learning_rate
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_mindspeed.megatron import (
    Megatron,
    MegatronOptimizer,
    ShardedModel,
    main_grad,
    open_megatron,
)
from rljob_runtime.update.update_mindspeed.megatron_step import MindSpeedStep
from rljob_runtime.update.update_mindspeed.megatron_weights import to_hf, to_megatron
from rljob_runtime.update.update_mindspeed.model import (
    Forward,
    check_architecture,
    config_of,
    make_model,
)

log = logging.getLogger(__name__)
OPTIMIZER = "megatron_optimizer"


class MindSpeedUpdate:
    """An `UpdateEngine`. Raises ConfigError where MindSpeed is not installed or cannot train the model."""

    def __init__(self, setup: UpdateSetup) -> None:
        _check(setup)
        self.step = 0
        self.version = 0
        self._setup, self._settings = setup, setup.spec.update.optimizer
        self._architecture = read_architecture(read_config(setup.model))
        check_architecture(self._architecture)
        self._megatron = open_megatron()
        _join(self._megatron, setup.spec.seed)
        config = config_of(self._megatron, self._architecture)
        batch = setup.spec.batch
        self._module = make_model(
            self._megatron,
            config,
            self._architecture,
            max_length=batch.max_prompt_length + batch.max_response_length,
        )
        self._load_policy()
        setup.ledger.track(MemoryKind.UPDATE_WEIGHTS, self._module.parameters())
        self._model = _share(self._megatron, config, self._module)
        self._optimizer = self._make_optimizer()
        self._forward = Forward(
            model=self._model,
            device=next(self._module.parameters()).device,
            temperature=setup.spec.rollout.temperature,
        )

    def logprobs(self, batch: SampleBatch) -> Tensor:
        """Log-probs of the batch's response tokens [T], float, without gradient."""
        with torch.no_grad():
            return self._forward(batch, with_entropy=False).logprobs_T

    def begin(self, loss: LossFn) -> MindSpeedStep:
        """Start an optimizer step."""
        return MindSpeedStep(self._model, self._forward, loss)

    def finish(
        self, begun: MindSpeedStep, *, groups_with_signal: int, min_groups_with_signal: int = 0
    ) -> dict[str, float]:
        """As `UpdateEngine.finish`."""
        group = self._setup.ranks.everyone
        try:
            if begun.mean_over is None:
                begun.add(NO_SAMPLES)  # a rank without samples names its metrics all the same
            here = begun.counts
            counts = torch.tensor([here.num_tokens, here.num_sequences, groups_with_signal])
            sum_over_ranks(counts, group)
            num_tokens, num_sequences, signal = counts.tolist()
            skip = signal < min_groups_with_signal or num_tokens == 0
            rate = learning_rate(self.step + 1, self._settings, self._setup.total_steps)
            of_tokens = begun.mean_over == "tokens"
            begun.metrics.loss /= max(num_tokens if of_tokens else num_sequences, 1)
            own = here.num_tokens if of_tokens else here.num_sequences
            norm = 0.0 if skip else self._apply(begun.metrics.loss, own, rate)
            skip |= math.isnan(norm)
        finally:
            begun.discard()
        self.step += 1
        self.version += not skip
        return begun.metrics.reduce(group, num_tokens=num_tokens) | {
            "gradient_norm": norm,
            "learning_rate": rate,
            "skipped": float(skip),
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's tensors, which every step ends in."""
        for name, weight in self._setup.policy.named_hf_parameters():
            yield name, weight.detach()

    def state_dict(self) -> dict[str, Tensor]:
        """Counters, and Megatron's nested state as the bytes of a file of torch's."""
        file = io.BytesIO()
        torch.save(self._optimizer.state_dict(), file)
        return {
            "step": torch.tensor(self.step),
            "version": torch.tensor(self.version),
            OPTIMIZER: torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`. Raises CheckpointError for another engine's."""
        if OPTIMIZER not in state:
            raise CheckpointError(
                f"the checkpoint holds {len(state)} tensors of the optimizer and no {OPTIMIZER}: "
                "another engine made it; resume with the update.engine of the run"
            )
        self._load_policy()
        file = io.BytesIO(state[OPTIMIZER].numpy().tobytes())
        self._optimizer.load_state_dict(torch.load(file, weights_only=True))
        self.step, self.version = int(state["step"]), int(state["version"])

    def _apply(self, loss: float, count: int, rate: float) -> float:
        """Sum gradients over ranks, divide, check, clip, step; returns the norm before clipping, NaN and
        nothing applied where a rank's loss or a gradient is not finite."""
        self._megatron.finalize_model_grads(
            [self._model], torch.tensor(count, device=self._forward.device)
        )
        if not self._all_finite(loss):
            return math.nan
        for group in self._optimizer.param_groups:  # as Megatron's scheduler sets them
            factor = group.get("wd_mult", 1.0)
            assert isinstance(factor, float | int), f"wd_mult is {factor!r}"
            group["lr"], group["weight_decay"] = rate, self._settings.weight_decay * factor
        applied, norm, _ = self._optimizer.step()
        assert applied and norm is not None, "Megatron skips steps for float16 alone"
        self._store_policy()
        return float(norm)

    def _all_finite(self, loss: float) -> bool:
        """Whether every rank's loss and gradients are. [ranks] → [ranks]."""
        group = self._setup.ranks.everyone
        gradients = [main_grad(parameter) for parameter in self._module.parameters()]
        finite = math.isfinite(loss) and all(bool(g.isfinite().all()) for g in gradients)
        bad = torch.zeros(size_of(group), dtype=torch.int64)
        bad[rank_of(group)] = not finite
        sum_over_ranks(bad, group)
        if bad.any():
            log.warning(
                "optimizer step %d: loss or gradient is not finite on update ranks %s; nothing was applied",
                self.step + 1,
                bad.nonzero().flatten().tolist(),
            )
        return not bad.any()

    def _make_optimizer(self) -> MegatronOptimizer:
        settings = self._settings
        config = self._megatron.OptimizerConfig(
            optimizer="adam",
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.beta1,
            adam_beta2=settings.beta2,
            adam_eps=settings.epsilon,
            clip_grad=settings.gradient_clip,
            params_dtype=torch.float32,
        )
        return self._megatron.get_megatron_optimizer(config=config, model_chunks=[self._model])

    def _load_policy(self) -> None:
        """Give the model the policy's weights. Raises WeightsError if names do not fit."""
        own = dict(self._module.named_parameters())
        given = dict(to_megatron(dict(self.weights()), self._architecture))
        if own.keys() != given.keys():
            raise WeightsError(
                f"{self._architecture.name} does not fit Megatron's GPTModel: missing "
                f"{sorted(own.keys() - given.keys())}, unknown {sorted(given.keys() - own.keys())}"
            )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(given[name])

    def _store_policy(self) -> None:
        """Give the policy the model's weights: rollout and checkpoints read it."""
        own = {name: p.detach() for name, p in self._module.named_parameters()}
        held = dict(self.weights())
        for name, tensor in to_hf(own, self._architecture):
            held[name].copy_(tensor)


def _check(setup: UpdateSetup) -> None:
    update = setup.spec.update
    if update.dtype != "float32":
        raise ConfigError(f"spec.update.dtype is {update.dtype}; engine mindspeed takes float32")
    for name in ("recompute", "offload"):
        if (value := getattr(update, name)) != "none":
            raise ConfigError(f"spec.update.{name} is {value}; engine mindspeed takes none")
    for name in ("tensor", "pipeline", "virtual_pipeline", "context", "expert"):
        if (degree := getattr(update.parallelism, name)) != 1:
            path = f"spec.update.parallelism.{name.replace('virtual_p', 'virtualP')}"
            raise ConfigError(f"{path} is {degree}; engine mindspeed trains data parallel; use 1")
    if update.parallelism.zero:
        raise ConfigError(
            f"spec.update.parallelism.zero is {update.parallelism.zero}; engine mindspeed takes 0"
        )


def _join(megatron: Megatron, seed: int) -> None:
    """Make Megatron's groups, once a process, over all ranks that train."""
    if megatron.model_parallel_is_initialized():
        return
    if not dist.is_initialized():  # one rank: nobody to meet
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(store=store, rank=0, world_size=1)
    megatron.initialize_model_parallel(tensor_model_parallel_size=1, pipeline_model_parallel_size=1)
    megatron.model_parallel_cuda_manual_seed(seed)


def _share(megatron: Megatron, config: object, module: nn.Module) -> ShardedModel:
    return megatron.DistributedDataParallel(
        config=config,
        ddp_config=megatron.DistributedDataParallelConfig(grad_reduce_in_fp32=True),
        module=module,
    )
