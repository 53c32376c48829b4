"""The update engines `megatron` and `mindspeed`: one Megatron optimizer step at a time.

Made by `update_table`. The loss is the algorithm's own, as with the engine `torch`: undivided over
micro-batches, whose gradients Megatron adds up in `main_grad`, sums over ranks and divides by the global
count.
"""

# T response tokens of all samples together

import io
import logging
import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.devices.collectives import rank_of, size_of, sum_over_ranks
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import CheckpointError, ConfigError, WeightsError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.accumulation import NO_SAMPLES, LossFn
from rljob_runtime.update.learning_rate import learning_rate
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_megatron.core import (
    Core,
    CoreOptimizer,
    ShardedModel,
    main_grad,
    open_core,
)
from rljob_runtime.update.update_megatron.model import CoreDecoder, check_architecture, config_of
from rljob_runtime.update.update_megatron.step import MegatronStep
from rljob_runtime.update.update_megatron.weights import to_hf, to_megatron

log = logging.getLogger(__name__)
OPTIMIZER = "megatron_optimizer"
ALONE = UpdateDegrees(data=1)


class MegatronUpdate:
    """An `UpdateEngine`. Raises ConfigError where Megatron is not installed or cannot train the model."""

    def __init__(self, setup: UpdateSetup) -> None:
        _check(setup)
        self.step = 0
        self.version = 0
        self._setup, self._settings = setup, setup.spec.update.optimizer
        self._ranks = setup.ranks
        groups = setup.ranks.groups
        degrees = groups.grid.degrees if groups else ALONE
        self._architecture = read_architecture(read_config(setup.model))
        check_architecture(self._architecture, degrees.tensor)
        self._core = open_core(setup.spec.update.engine)
        _join(self._core, degrees, setup.spec.seed)
        dtype = DTYPES[setup.spec.update.dtype]
        recompute = setup.spec.update.recompute == "full"
        zero = degrees.zero == 1
        config = config_of(
            self._core, self._architecture, degrees, dtype=dtype, recompute=recompute
        )
        self._module = CoreDecoder(self._core, config, self._architecture, groups, dtype=dtype)
        self._load_policy()
        setup.ledger.track(MemoryKind.UPDATE_WEIGHTS, self._module.parameters())
        self._model = _share(self._core, config, self._module, zero=zero)
        self._optimizer = self._make_optimizer(dtype, zero=zero)

    def logprobs(self, batch: SampleBatch) -> Tensor:
        """Log-probs of the batch's response tokens [T], float, without gradient."""
        with torch.no_grad():
            return self._forward(batch, with_entropy=False).logprobs_T

    def begin(self, loss: LossFn) -> MegatronStep:
        """Start an optimizer step."""
        self._optimizer.zero_grad()  # whose step leaves `main_grad` as each parameter's `grad`
        return MegatronStep(
            self._model, lambda batch: self._forward(batch, with_entropy=True), loss
        )

    def finish(
        self, begun: MegatronStep, *, groups_with_signal: int, min_groups_with_signal: int = 0
    ) -> dict[str, float]:
        """As `UpdateEngine.finish`."""
        try:
            if begun.mean_over is None:
                begun.add(NO_SAMPLES)  # a rank without samples names its metrics all the same
            here = begun.counts
            counts = torch.tensor([here.num_tokens, here.num_sequences, groups_with_signal])
            sum_over_ranks(counts, self._ranks.data)
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
        return begun.metrics.reduce(self._ranks.data, num_tokens=num_tokens) | {
            "gradient_norm": norm,
            "learning_rate": rate,
            "skipped": float(skip),
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's tensors, which every step ends in."""
        for name, weight in self._setup.policy.named_hf_parameters():
            yield name, weight.detach()

    def state_dict(self) -> dict[str, Tensor]:
        """Counters, and this rank's part of the optimizer as the bytes of a file of torch's: its moments and
        the weights that it steps."""
        file = io.BytesIO()
        inner = self._optimizer.optimizer
        held = [weight for group in inner.param_groups for weight in group["params"]]
        torch.save({"moments": inner.state_dict(), "weights": held}, file)
        return {
            "step": torch.tensor(self.step),
            "version": torch.tensor(self.version),
            OPTIMIZER: torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`. Raises CheckpointError for another engine's, or other degrees'."""
        if OPTIMIZER not in state:
            raise CheckpointError(
                f"the checkpoint holds {len(state)} tensors of the optimizer and no {OPTIMIZER}: "
                "another engine made it; resume with the update.engine of the run"
            )
        self._load_policy()
        self._optimizer.reload_model_params()
        file = io.BytesIO(state[OPTIMIZER].numpy().tobytes())
        stored = torch.load(file, weights_only=True)
        inner = self._optimizer.optimizer
        held = [weight for group in inner.param_groups for weight in group["params"]]
        shapes = [weight.shape for weight in held], [weight.shape for weight in stored["weights"]]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"the optimizer's {len(shapes[1])} tensors are those of other degrees of "
                "spec.update.parallelism; resume with the run's"
            )
        inner.load_state_dict(stored["moments"])
        with torch.no_grad():
            for weight, value in zip(held, stored["weights"], strict=True):
                weight.copy_(value)
        self.step, self.version = int(state["step"]), int(state["version"])

    def _forward(self, batch: SampleBatch, *, with_entropy: bool) -> TokenLogprobs:
        if batch.num_tokens == 0:
            none_T = torch.zeros(0)
            return TokenLogprobs(logprobs_T=none_T, entropy_T=none_T)
        found: TokenLogprobs = self._module(
            batch, temperature=self._setup.spec.rollout.temperature, with_entropy=with_entropy
        )
        return found

    def _apply(self, loss: float, count: int, rate: float) -> float:
        """Sum gradients over ranks, divide, check, clip, step; returns the norm before clipping, NaN and
        nothing applied where a rank's loss or a gradient is not finite."""
        groups = self._ranks.groups
        if self._core.counts_once and groups and groups.grid.place(groups.rank).context:
            count = 0
        with self._core.as_cuda():
            self._core.finalize_model_grads([self._model], torch.tensor(count))
        if not self._all_finite(loss):
            return math.nan
        for group in self._optimizer.param_groups:  # as Megatron's scheduler sets them
            factor = group.get("wd_mult", 1.0)
            assert isinstance(factor, float | int), f"wd_mult is {factor!r}"
            group["lr"], group["weight_decay"] = rate, self._settings.weight_decay * factor
        with self._core.as_cuda():
            applied, norm, _ = self._optimizer.step()
        assert applied and norm is not None, "Megatron skips steps for float16 alone"
        self._store_policy()
        return float(norm)

    def _all_finite(self, loss: float) -> bool:
        """Whether every rank's loss and gradients are. [ranks] → [ranks]."""
        group = self._ranks.everyone
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

    def _make_optimizer(self, dtype: torch.dtype, *, zero: bool) -> CoreOptimizer:
        settings = self._settings
        config = self._core.OptimizerConfig(
            optimizer="adam",
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.beta1,
            adam_beta2=settings.beta2,
            adam_eps=settings.epsilon,
            clip_grad=settings.gradient_clip,
            params_dtype=dtype,
            bf16=dtype == torch.bfloat16,
            use_distributed_optimizer=zero,
        )
        with self._core.as_cuda():
            return self._core.get_megatron_optimizer(config=config, model_chunks=[self._model])

    def _load_policy(self) -> None:
        """Give the model the policy's weights. Raises WeightsError if names do not fit."""
        own = dict(self._module.named_parameters())
        given = dict(to_megatron(dict(self.weights()), self._architecture))
        if own.keys() != given.keys():
            raise WeightsError(
                f"{self._architecture.name} does not fit Megatron's layers: missing "
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
    if update.offload != "none":
        raise ConfigError(
            f"spec.update.offload is {update.offload}; engine {update.engine} takes none"
        )
    if update.lora is not None:
        raise ConfigError(f"spec.update.lora is given; engine {update.engine} trains all weights")
    if (moments := update.optimizer.moments_dtype) != "float32":
        raise ConfigError(
            f"spec.update.optimizer.momentsDtype is {moments}; engine {update.engine} takes float32"
        )
    for name in ("pipeline", "virtual_pipeline", "expert"):
        if (degree := getattr(update.parallelism, name)) != 1:
            path = f"spec.update.parallelism.{name.replace('virtual_p', 'virtualP')}"
            raise ConfigError(f"{path} is {degree}; engine {update.engine} takes 1")
    if (zero := update.parallelism.zero) not in (0, 1):
        raise ConfigError(
            f"spec.update.parallelism.zero is {zero}; engine {update.engine} takes 0 or 1"
        )


def _join(core: Core, degrees: UpdateDegrees, seed: int) -> None:
    """Make Megatron's groups, once a process, over all ranks that train."""
    if core.model_parallel_is_initialized():
        return
    if not dist.is_initialized():  # one rank: nobody to meet
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(store=store, rank=0, world_size=1)
    core.initialize_model_parallel(
        tensor_model_parallel_size=degrees.tensor,
        pipeline_model_parallel_size=1,
        context_parallel_size=degrees.context,
    )
    core.model_parallel_cuda_manual_seed(seed)


def _share(core: Core, config: object, module: nn.Module, *, zero: bool) -> ShardedModel:
    return core.DistributedDataParallel(
        config=config,
        ddp_config=core.DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=zero
        ),
        module=module,
    )
