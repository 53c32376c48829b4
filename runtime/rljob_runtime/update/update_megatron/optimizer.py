"""Megatron's gradient buffers and optimizer behind the update engine's interface.

`engine` creates them. Gradients of undivided losses are summed in `main_grad` and divided here; Megatron sums
them over ranks, clips and steps, and with ZeRO 1 each rank steps a shard.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rljob_api.spec.engines import Optimizer
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import CheckpointError
from rljob_runtime.update.state_places import StateRange
from rljob_runtime.update.update_megatron.core import Core, CoreOptimizer, ShardedModel
from rljob_runtime.update.update_megatron.model import CoreDecoder
from rljob_runtime.update.update_megatron.weights import source_names

MOMENTS, STEPS = ("exp_avg", "exp_avg_sq"), "adamw_step"


class CoreGradients:
    """A `StepGradients` in the buffers of Megatron's DistributedDataParallel."""

    def __init__(
        self,
        core: Core,
        model: ShardedModel,
        optimizer: CoreOptimizer,
        parameters: Iterable[nn.Parameter],
    ) -> None:
        self._core, self._model, self._optimizer = core, model, optimizer
        self._parameters = list(parameters)
        optimizer.zero_grad()  # its step leaves `main_grad` as each parameter's `grad`
        model.zero_grad_buffer()

    def end_pass(self) -> None:
        """Do nothing, since Megatron's hooks have summed the gradients."""

    def divide(self, by: float) -> None:
        """Divide all buffers by a number."""
        self._model.scale_gradients(1 / by)

    def norm(self) -> float:
        """Return the norm of this rank's shard of the model."""
        squares = [main_grad(parameter).float().pow(2).sum() for parameter in self._parameters]
        return math.sqrt(sum(float(square) for square in squares))

    def sum_over_ranks(self) -> None:
        """Sum over data and context ranks, and over tensor ranks what each computed for its own tokens."""
        self._core.finalize_model_grads([self._model])

    def clip(self, limit: float) -> float:
        """Return the norm of the full model's gradient; Megatron clips in its step."""
        with self._core.as_cuda():
            self._optimizer.prepare_grads()
            return float(self._optimizer.get_grad_norm())

    def free(self) -> None:
        """Set the buffers to zero without freeing them."""
        self._model.zero_grad_buffer()


@dataclass(frozen=True, slots=True)
class _SteppedSlice:
    """Items of a parameter from `first` on, as the optimizer steps them, with their group and state."""

    name: str
    stepped: Tensor
    first: int
    group: dict[str, Any]
    state: dict[str, Any]


class CoreAdam:
    """A `StepOptimizer`. The policy's weights are views of the module's, and in the ledger before `begin`."""

    def __init__(
        self,
        core: Core,
        model: ShardedModel,
        module: CoreDecoder,
        settings: Optimizer,
        *,
        dtype: torch.dtype,
        zero: bool,
        ledger: MemoryLedger,
    ) -> None:
        self._core, self._model, self._module, self._settings = core, model, module, settings
        self._dtype, self._zero, self._ledger = dtype, zero, ledger
        config = core.OptimizerConfig(
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
        with core.as_cuda():
            self._optimizer = core.get_megatron_optimizer(config=config, model_chunks=[model])

    def begin(self) -> CoreGradients:
        """Start a step with zero gradients."""
        parameters = list(self._module.parameters())
        self._ledger.track(MemoryKind.GRADIENTS, map(main_grad, parameters))
        self._track()
        return CoreGradients(self._core, self._model, self._optimizer, parameters)

    def step(self, learning_rate: float) -> None:
        """Apply the gradients; the policy then has the new weights."""
        for group in self._optimizer.param_groups:  # as Megatron's scheduler sets them
            factor = group.get("wd_mult", 1.0)
            assert isinstance(factor, float | int), f"wd_mult is {factor!r}"
            group["lr"], group["weight_decay"] = (
                learning_rate,
                self._settings.weight_decay * factor,
            )
        with self._core.as_cuda():
            applied, _, _ = self._optimizer.step()
        assert applied, "Megatron skips steps for float16 alone"
        self._track()

    def state_dict(self) -> dict[str, Tensor]:
        """Return this rank's moments, and float32 main weights if there are any, by the module's names.

        These are the live tensors, not copies.
        """
        tensors, number = dict[str, Tensor](), 0
        for stepped_slice in self._stepped_slices():
            state = stepped_slice.state
            tensors |= {
                f"{kind}.{stepped_slice.name}": state[kind] for kind in MOMENTS if kind in state
            }
            number = max(number, int(state.get("step", stepped_slice.group.get("step", 0))))
            if self._dtype != torch.float32:
                tensors[f"main.{stepped_slice.name}"] = stepped_slice.stepped.detach()
        return tensors | {STEPS: torch.tensor(float(number))}

    def ranges(self) -> dict[str, StateRange]:
        """Return the ranges of all tensors that a state has after the first step."""
        kinds = MOMENTS if self._dtype == torch.float32 else (*MOMENTS, "main")
        latent = self._module.architecture.latent is not None
        return {STEPS: StateRange(kind=STEPS, shape=())} | {
            f"{kind}.{stepped_slice.name}": StateRange(
                kind=kind,
                shape=stepped_slice.stepped.shape,
                parameters=tuple(source_names(stepped_slice.name, latent=latent)),
                first=stepped_slice.first,
            )
            for stepped_slice in self._stepped_slices()
            for kind in kinds
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a state; the policy already has the weights of the same step.

        Raises CheckpointError for a state of another engine or of other degrees.
        """
        number, saved_names = int(state.get(STEPS, 0)), set(state) - {STEPS}
        ranges = self.ranges()
        wrong = saved_names - set(ranges) | {
            n for n in saved_names & set(ranges) if state[n].shape != ranges[n].shape
        }
        if wrong or (number and len(state) != len(ranges)):
            raise CheckpointError(
                f"the checkpoint's {len(state)} tensors of the optimizer are not the {len(ranges)} of this "
                "rank: another engine made it; resume with the update.engine of the run"
            )
        self._optimizer.reload_model_params()
        for stepped_slice in self._stepped_slices():
            stepped_slice.state.clear()
            if number:  # else the first step creates them
                moments = {n: state[f"{n}.{stepped_slice.name}"].clone() for n in MOMENTS}
                stepped_slice.state.update(moments, step=torch.tensor(float(number)))
            if "step" in stepped_slice.group:
                stepped_slice.group["step"] = number
            if f"main.{stepped_slice.name}" in state:
                stepped_slice.stepped.detach().copy_(state[f"main.{stepped_slice.name}"])

    def _stepped_slices(self) -> Iterator["_SteppedSlice"]:
        """Yield the slices that this rank steps."""
        names = {parameter: name for name, parameter in self._module.named_parameters()}
        for optimizer in self._optimizers():
            groups, states = optimizer.optimizer.param_groups, optimizer.optimizer.state
            if self._zero:
                for parameter, (group, index) in optimizer.model_param_group_index_map.items():
                    first: int = optimizer._get_model_param_range_map(parameter)["param"].start
                    stepped = groups[group]["params"][index]
                    name = names[parameter]
                    yield _SteppedSlice(name, stepped, first, groups[group], states[stepped])
                continue
            mains = {getattr(p, "main_param", None): name for p, name in names.items()}
            for param_group in groups:
                for stepped in param_group["params"]:
                    name = names[stepped] if stepped in names else mains[stepped]
                    yield _SteppedSlice(name, stepped, 0, param_group, states[stepped])

    def _track(self) -> None:
        """Track main weights and moments in the ledger; the first step creates the moments."""
        states = [
            state
            for optimizer in self._optimizers()
            for state in optimizer.optimizer.state.values()
        ]
        moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
        self._ledger.track(MemoryKind.OPTIMIZER, [*self._stepped(), *moments])

    def _stepped(self) -> list[Tensor]:
        """Return the main weights, if they are not the policy's weights."""
        if self._dtype == torch.float32:
            return []
        groups = [
            group for optimizer in self._optimizers() for group in optimizer.optimizer.param_groups
        ]
        return [weight for group in groups for weight in group["params"]]

    def _optimizers(self) -> Sequence[CoreOptimizer]:
        """Return the optimizer, or two if ranks share experts."""
        return getattr(self._optimizer, "chained_optimizers", None) or [self._optimizer]


def main_grad(parameter: nn.Parameter) -> Tensor:
    """Return the tensor in which DistributedDataParallel sums a parameter's gradients."""
    gradient = parameter.main_grad  # type: ignore[attr-defined]
    assert isinstance(gradient, Tensor), "DistributedDataParallel gives every parameter one"
    return gradient
