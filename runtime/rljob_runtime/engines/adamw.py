"""AdamW (arXiv:1711.05101) over parameters by name, with a state that is flat tensors by name.

The arithmetic is torch's functional AdamW; its optimizer class would spend 3.5 s of every worker's
start on importing the compiler. Called by the update engine, which gives the learning rate.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from rljob_api.engines import Optimizer
from rljob_runtime.errors import CheckpointError


class AdamW:
    """Steps parameters by their `grad`. Weight decay spares vectors: norms and biases."""

    def __init__(self, parameters: Mapping[str, Tensor], settings: Optimizer) -> None:
        self._parameters = dict(parameters)
        self._settings = settings
        self._num_steps = torch.zeros(())
        # Moments exist from the start, so that what does not fit is known before the first step.
        self._first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self._second = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def step(self, learning_rate: float) -> None:
        """Apply the gradients."""
        matrices = [name for name, p in self._parameters.items() if p.ndim >= 2]
        vectors = [name for name, p in self._parameters.items() if p.ndim < 2]
        self._apply(matrices, learning_rate, self._settings.weight_decay)
        self._apply(vectors, learning_rate, 0.0)
        self._num_steps += 1

    def state_dict(self) -> dict[str, Tensor]:
        """`exp_avg.<name>`, `exp_avg_sq.<name>` and `adamw_step`; the live tensors, not copies."""
        return {
            **{f"exp_avg.{name}": moment for name, moment in self._first.items()},
            **{f"exp_avg_sq.{name}": moment for name, moment in self._second.items()},
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
                f"{unknown}, of another shape {wrong}; resume with the model it was saved with"
            )
        for name, tensor in held.items():
            tensor.copy_(state[name])

    @torch.no_grad()
    def _apply(self, names: list[str], learning_rate: float, weight_decay: float) -> None:
        if not names:
            return
        adamw(
            [self._parameters[name] for name in names],
            [_gradient(self._parameters[name], name) for name in names],
            [self._first[name] for name in names],
            [self._second[name] for name in names],
            [],
            [self._num_steps.clone() for _ in names],  # each of them is counted up
            fused=True,
            amsgrad=False,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            lr=learning_rate,
            weight_decay=weight_decay,
            eps=self._settings.epsilon,
            maximize=False,
        )


def _gradient(parameter: Tensor, name: str) -> Tensor:
    assert parameter.grad is not None, f"{name} has no gradient; the gradient buffer gives one"
    return parameter.grad
