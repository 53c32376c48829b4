"""Gradients of one optimizer step: what an engine asks of them, and one flat buffer of a whole model's.

Autograd adds into the buffer in place, so that summing over ranks, norm and clipping are single operations
and nothing is copied.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.backends.collectives import sum_over_ranks
from rljob_runtime.backends.ledger import MemoryKind, MemoryLedger


class StepGradients(Protocol):
    """Gradients of all parameters, zero when they are made. All ranks call the same in the same order."""

    def end_pass(self) -> None:
        """A backward pass is over."""
        ...

    def divide(self, by: float) -> None:
        """Divide what this rank has; before the sum."""
        ...

    def norm(self) -> float:
        """Euclidean norm of what this rank has."""
        ...

    def sum_over_ranks(self) -> None:
        """Add up what ranks computed on different tokens."""
        ...

    def clip(self, limit: float) -> float:
        """Scale the model's gradient down to norm `limit` if it exceeds it; returns the norm before."""
        ...

    def free(self) -> None:
        """Drop them."""
        ...


class GradientBuffer:
    """A `StepGradients` where every parameter's `grad` is a view of one tensor. Parameters share one type.

    group: ranks that hold the whole model too.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        ledger: MemoryLedger,
        group: ProcessGroup | None = None,
    ) -> None:
        self._group = group
        self._parameters = list(parameters.values())
        sizes = [parameter.numel() for parameter in self._parameters]
        first = self._parameters[0]
        ledger.require(MemoryKind.GRADIENTS, sum(sizes) * first.element_size())
        self._flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        ledger.track(MemoryKind.GRADIENTS, [self._flat])
        for parameter, part in zip(self._parameters, torch.split(self._flat, sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def end_pass(self) -> None:
        """Nothing to do: gradients are where they belong."""

    def divide(self, by: float) -> None:
        """Divide all gradients."""
        self._flat.div_(by)

    def norm(self) -> float:
        """Euclidean norm of all gradients together."""
        return float(torch.linalg.vector_norm(self._flat))

    def sum_over_ranks(self) -> None:
        """All of the model's bytes, [parameters] → [parameters]."""
        sum_over_ranks(self._flat, self._group)

    def clip(self, limit: float) -> float:
        """Scale the gradients down to norm `limit` if they exceed it; returns the norm before."""
        norm = self.norm()
        if norm > limit:
            self._flat.mul_(limit / norm)
        return norm

    def free(self) -> None:
        """Drop the buffer and the parameters' gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        self._flat = self._flat.new_zeros(0)
