"""AdamW (arXiv:1711.05101) over parameters by name, with a state that is flat tensors by name.

The arithmetic is torch's functional AdamW; its optimizer class would spend 3.5 s of every worker's start on
importing the compiler. The update engine calls this and passes the learning rate.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from rljob_api.spec.engines import Optimizer
from rljob_runtime.errors import CheckpointError
from rljob_runtime.update.moments import Float8Moments, Moments, WideMoments, moments_bytes
from rljob_runtime.update.precision import main_dtype, main_weights, needs_main


class AdamW:
    """Steps parameters by their `grad`. Weight decay skips vectors: norms and biases.

    For parameters below single precision it steps float32 main weights and rounds these into the parameters.
    """

    def __init__(self, parameters: Mapping[str, Tensor], settings: Optimizer) -> None:
        self._parameters = dict(parameters)
        self._settings = settings
        self._num_steps = torch.zeros(())
        # Moments exist from the start, so that what does not fit is known before the first step.
        self._main = main_weights(parameters)
        self._stepped = self._parameters | self._main
        in_float8 = settings.moments_dtype == "float8"
        self._moments: Moments = (Float8Moments if in_float8 else WideMoments)(self._stepped)

    def step(self, learning_rate: float) -> None:
        """Apply the gradients to all parameters."""
        matrices = [name for name, p in self._parameters.items() if p.ndim >= 2]
        vectors = [name for name, p in self._parameters.items() if p.ndim < 2]
        self._apply(matrices, learning_rate, self._settings.weight_decay)
        self._apply(vectors, learning_rate, 0.0)
        self._num_steps += 1
        for name, main in self._main.items():
            self._parameters[name].detach().copy_(main)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the moments, `adamw_step`, and `main.<name>` if there are main weights.

        These are the live tensors, not copies.
        """
        return {
            **{f"main.{name}": main for name, main in self._main.items()},
            **self._moments.state_dict(),
            "adamw_step": self._num_steps,
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a `state_dict`. Raises CheckpointError, with nothing copied, if it does not fit."""
        live = self.state_dict()
        missing, unknown = sorted(set(live) - set(state)), sorted(set(state) - set(live))
        wrong = sorted(n for n in set(live) & set(state) if live[n].shape != state[n].shape)
        if missing or unknown or wrong:
            raise CheckpointError(
                f"the optimizer's state does not fit the model: missing {missing}, unknown "
                f"{unknown}, of another shape {wrong}; resume with the model, the "
                "spec.update.dtype and the momentsDtype that it was saved with"
            )
        for name, tensor in live.items():
            tensor.copy_(state[name])

    @torch.no_grad()
    def _apply(self, names: list[str], learning_rate: float, weight_decay: float) -> None:
        weights = {name: self._stepped[name] for name in names}
        gradients = {name: _gradient(self._parameters[name], name) for name in names}
        if not names:
            return
        for chunk in self._moments.chunks(weights, gradients, step=int(self._num_steps)):
            adamw(
                chunk.weights,
                chunk.gradients,
                chunk.first,
                chunk.second,
                [],
                [self._num_steps.clone() for _ in chunk.weights],  # AdamW increments each of them
                fused=True,
                amsgrad=False,
                beta1=self._settings.beta1,
                beta2=self._settings.beta2,
                lr=learning_rate,
                weight_decay=weight_decay,
                eps=self._settings.epsilon,
                maximize=False,
            )


def state_bytes(parameters: Mapping[str, Tensor], settings: Optimizer) -> int:
    """Return the bytes of AdamW's state for these parameters, without its step counter."""
    total = 0
    for parameter in parameters.values():
        items, wide = parameter.numel(), main_dtype(parameter).itemsize
        total += moments_bytes(items, wide, float8=settings.moments_dtype == "float8")
        total += items * wide * needs_main(parameter)
    return total


def _gradient(parameter: Tensor, name: str) -> Tensor:
    assert parameter.grad is not None, f"{name} has no gradient; the gradient buffer gives one"
    return parameter.grad
