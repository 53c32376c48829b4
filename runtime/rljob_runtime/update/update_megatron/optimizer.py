"""Megatron's gradient buffers and optimizer, as the update engine asks for them.

Made by `engine`. Gradients of undivided losses add up in `main_grad` and are divided here; Megatron sums them
over ranks, clips and steps, and with ZeRO 1 each rank a part.
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
from rljob_runtime.update.update_megatron.weights import parts_of

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
        optimizer.zero_grad()  # whose step leaves `main_grad` as each parameter's `grad`
        model.zero_grad_buffer()

    def end_pass(self) -> None:
        """Megatron's hooks have added them up."""

    def divide(self, by: float) -> None:
        """All of the buffers."""
        self._model.scale_gradients(1 / by)

    def norm(self) -> float:
        """Of this rank's part of the model."""
        squares = [main_grad(own).float().pow(2).sum() for own in self._parameters]
        return math.sqrt(sum(float(square) for square in squares))

    def sum_over_ranks(self) -> None:
        """Of data and context ranks, and of tensor ranks what each computed for its own tokens."""
        self._core.finalize_model_grads([self._model])

    def clip(self, limit: float) -> float:
        """The norm of the whole model's; Megatron clips in its step."""
        with self._core.as_cuda():
            self._optimizer.prepare_grads()
            return float(self._optimizer.get_grad_norm())

    def free(self) -> None:
        """The buffers stay."""
        self._model.zero_grad_buffer()


@dataclass(frozen=True, slots=True)
class _Owned:
    """Items of a parameter from `first` on, as they are stepped, with their group and their state."""

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
        """Zero from here on."""
        parameters = list(self._module.parameters())
        self._ledger.track(MemoryKind.GRADIENTS, map(main_grad, parameters))
        self._track()
        return CoreGradients(self._core, self._model, self._optimizer, parameters)

    def step(self, learning_rate: float) -> None:
        """The policy has the new weights."""
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
        """This rank's moments, and float32 main weights where there are any, by the module's names: the
        live tensors, not copies."""
        found, number = dict[str, Tensor](), 0
        for of in self._owned():
            state = of.state
            found |= {f"{kind}.{of.name}": state[kind] for kind in MOMENTS if kind in state}
            number = max(number, int(state.get("step", of.group.get("step", 0))))
            if self._dtype != torch.float32:
                found[f"main.{of.name}"] = of.stepped.detach()
        return found | {STEPS: torch.tensor(float(number))}

    def ranges(self) -> dict[str, StateRange]:
        """Of all that a state has once a step was made."""
        kinds = MOMENTS if self._dtype == torch.float32 else (*MOMENTS, "main")
        latent = self._module.architecture.latent is not None
        return {STEPS: StateRange(kind=STEPS, shape=())} | {
            f"{kind}.{of.name}": StateRange(
                kind=kind,
                shape=of.stepped.shape,
                parameters=tuple(parts_of(of.name, latent=latent)),
                first=of.first,
            )
            for of in self._owned()
            for kind in kinds
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The policy has the weights of the same step. Raises CheckpointError for another engine's, or other
        degrees'."""
        number, given = int(state.get(STEPS, 0)), set(state) - {STEPS}
        known = self.ranges()
        wrong = given - set(known) | {
            n for n in given & set(known) if state[n].shape != known[n].shape
        }
        if wrong or (number and len(state) != len(known)):
            raise CheckpointError(
                f"the checkpoint's {len(state)} tensors of the optimizer are not the {len(known)} of this "
                "rank: another engine made it; resume with the update.engine of the run"
            )
        self._optimizer.reload_model_params()
        for of in self._owned():
            of.state.clear()
            if number:  # else the first step makes them
                moments = {n: state[f"{n}.{of.name}"].clone() for n in MOMENTS}
                of.state.update(moments, step=torch.tensor(float(number)))
            if "step" in of.group:
                of.group["step"] = number
            if f"main.{of.name}" in state:
                of.stepped.detach().copy_(state[f"main.{of.name}"])

    def _owned(self) -> Iterator["_Owned"]:
        """What this rank steps."""
        names = {parameter: name for name, parameter in self._module.named_parameters()}
        for part in self._parts():
            groups, states = part.optimizer.param_groups, part.optimizer.state
            if self._zero:
                for parameter, (group, place) in part.model_param_group_index_map.items():
                    first: int = part._get_model_param_range_map(parameter)["param"].start
                    stepped = groups[group]["params"][place]
                    name = names[parameter]
                    yield _Owned(name, stepped, first, groups[group], states[stepped])
                continue
            mains = {getattr(p, "main_param", None): name for p, name in names.items()}
            for of in groups:
                for stepped in of["params"]:
                    name = names[stepped] if stepped in names else mains[stepped]
                    yield _Owned(name, stepped, 0, of, states[stepped])

    def _track(self) -> None:
        """Main weights, and the moments, which the first step makes."""
        states = [state for part in self._parts() for state in part.optimizer.state.values()]
        moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
        self._ledger.track(MemoryKind.OPTIMIZER, [*self._stepped(), *moments])

    def _stepped(self) -> list[Tensor]:
        """Main weights, where they are others than the policy's."""
        if self._dtype == torch.float32:
            return []
        groups = [group for part in self._parts() for group in part.optimizer.param_groups]
        return [weight for group in groups for weight in group["params"]]

    def _parts(self) -> Sequence[CoreOptimizer]:
        """One, or of experts that ranks share another one."""
        return getattr(self._optimizer, "chained_optimizers", None) or [self._optimizer]


def main_grad(parameter: nn.Parameter) -> Tensor:
    """What DistributedDataParallel adds a parameter's gradients up in."""
    gradient = parameter.main_grad  # type: ignore[attr-defined]
    assert isinstance(gradient, Tensor), "DistributedDataParallel gives every parameter one"
    return gradient
