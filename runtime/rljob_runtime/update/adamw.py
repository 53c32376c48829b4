"""AdamW (arXiv:1711.05101) over parameters by name, with a state that is flat tensors by name.

The arithmetic is torch's functional AdamW; its optimizer class would spend 3.5 s of every worker's
start on importing the compiler. Called by the update engine, which gives the learning rate.
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
    """Steps parameters by their `grad`. Weight decay spares vectors: norms and biases.

    Of parameters below single precision it steps float32 main weights, and rounds these into them.
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
        """Apply the gradients."""
        matrices = [name for name, p in self._parameters.items() if p.ndim >= 2]
        vectors = [name for name, p in self._parameters.items() if p.ndim < 2]
        self._apply(matrices, learning_rate, self._settings.weight_decay)
        self._apply(vectors, learning_rate, 0.0)
        self._num_steps += 1
        for name, main in self._main.items():
            self._parameters[name].detach().copy_(main)

    def state_dict(self) -> dict[str, Tensor]:
        """`main.<name>` where there are main weights, the moments' and `adamw_step`; the live tensors, not
        copies."""
        return {
            **{f"main.{name}": main for name, main in self._main.items()},
            **self._moments.state_dict(),
            "adamw_step": self._num_steps,
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a `state_dict`. Raises CheckpointError, with nothing copied, if it does not fit."""
        held = self.state_dict()
        missing, unknown = sorted(set(held) - set(state)), sorted(set(state) - set(held))
        wrong = sorted(n for n in set(held) & set(state) if held[n].shape != state[n].shape)
        if missing or unknown or wrong:
            raise CheckpointError(
                f"the optimizer's state does not fit the model: missing {missing}, unknown "
                f"{unknown}, of another shape {wrong}; resume with the model, the "
                "spec.update.dtype and the momentsDtype that it was saved with"
            )
        for name, tensor in held.items():
            tensor.copy_(state[name])

    @torch.no_grad()
    def _apply(self, names: list[str], learning_rate: float, weight_decay: float) -> None:
        weights = {name: self._stepped[name] for name in names}
        gradients = {name: _gradient(self._parameters[name], name) for name in names}
        if not names:
            return
        for part in self._moments.parts(weights, gradients, step=int(self._num_steps)):
            adamw(
                part.weights,
                part.gradients,
                part.first,
                part.second,
                [],
                [self._num_steps.clone() for _ in part.weights],  # each of them is counted up
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
    """Of AdamW's state of these parameters, but for its counter."""
    total = 0
    for parameter in parameters.values():
        items, wide = parameter.numel(), main_dtype(parameter).itemsize
        total += moments_bytes(items, wide, float8=settings.moments_dtype == "float8")
        total += items * wide * needs_main(parameter)
    return total


def _gradient(parameter: Tensor, name: str) -> Tensor:
    assert parameter.grad is not None, f"{name} has no gradient; the gradient buffer gives one"
    return parameter.grad
