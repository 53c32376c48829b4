"""Megatron's gradient buffers and optimizer, as the update engine asks for them.

Made by `engine`. Gradients of undivided losses add up in `main_grad` and are divided here; Megatron sums them
over ranks, clips and steps, and with ZeRO 1 each rank a part.
"""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from rljob_api.spec.engines import Optimizer
from rljob_runtime.errors import CheckpointError
from rljob_runtime.update.update_megatron.core import Core, CoreOptimizer, ShardedModel

STATE = "megatron_optimizer"


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


class CoreAdam:
    """A `StepOptimizer`. load, store: give the model the policy's weights, and the policy the model's."""

    def __init__(
        self,
        core: Core,
        model: ShardedModel,
        module: nn.Module,
        settings: Optimizer,
        *,
        dtype: torch.dtype,
        zero: bool,
        load: Callable[[], None],
        store: Callable[[], None],
    ) -> None:
        self._core, self._model, self._module, self._settings = core, model, module, settings
        self._load, self._store = load, store
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
        parameters = self._module.parameters()
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
        self._store()

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's moments and the weights that it steps, as the bytes of a file of torch's."""
        file = io.BytesIO()
        moments = [part.optimizer.state_dict() for part in self._parts()]
        torch.save({"moments": moments, "weights": self._stepped()}, file)
        return {STATE: torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The policy has the weights of the same step. Raises CheckpointError for another engine's, or other
        degrees'."""
        if STATE not in state:
            raise CheckpointError(
                f"the checkpoint holds {len(state)} tensors of the optimizer and no {STATE}: "
                "another engine made it; resume with the update.engine of the run"
            )
        self._load()
        self._optimizer.reload_model_params()
        stored = torch.load(io.BytesIO(state[STATE].numpy().tobytes()), weights_only=True)
        own, others = self._stepped(), stored["weights"]
        if [weight.shape for weight in own] != [weight.shape for weight in others]:
            raise CheckpointError(
                f"the optimizer's {len(others)} tensors are those of other degrees of "
                "spec.update.parallelism; resume with the run's"
            )
        for part, moments in zip(self._parts(), stored["moments"], strict=True):
            part.optimizer.load_state_dict(moments)
        with torch.no_grad():
            for weight, value in zip(own, others, strict=True):
                weight.copy_(value)

    def _stepped(self) -> list[Tensor]:
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
