"""Gradients of one optimizer step: the interface of the engines, and one flat buffer for a full model.

Autograd adds into the buffer in place, so that the sum over ranks, the norm and clipping are single
operations without copies.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import sum_over_ranks
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.update.precision import main_dtype, widen_gradients


class StepGradients(Protocol):
    """Gradients of all parameters, initially zero. All ranks call the same methods in the same order."""

    def end_pass(self) -> None:
        """End a backward pass."""
        ...

    def divide(self, by: float) -> None:
        """Divide this rank's gradients, before the sum over ranks."""
        ...

    def norm(self) -> float:
        """Return the Euclidean norm of this rank's gradients."""
        ...

    def sum_over_ranks(self) -> None:
        """Sum what ranks computed on different tokens."""
        ...

    def clip(self, limit: float) -> float:
        """Scale the model's gradient down to norm `limit` if it exceeds it; returns the norm before."""
        ...

    def free(self) -> None:
        """Drop the gradients of all parameters."""
        ...


class GradientBuffer:
    """A `StepGradients` where every parameter's `grad` is a view of one tensor. Parameters share one dtype.

    group: ranks that also hold the full model. `clip` divides and clips in one pass over the gradients, and a
    single rank computes their norm once.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        ledger: MemoryLedger,
        group: ProcessGroup | None = None,
    ) -> None:
        self._group = group
        self._parameters = list(parameters.values())
        widen_gradients(parameters)
        sizes = [parameter.numel() for parameter in self._parameters]
        first = self._parameters[0]
        ledger.require(MemoryKind.GRADIENTS, sum(sizes) * main_dtype(first).itemsize)
        self._flat = torch.zeros(sum(sizes), dtype=main_dtype(first), device=first.device)
        ledger.track(MemoryKind.GRADIENTS, [self._flat])
        for parameter, view in zip(self._parameters, torch.split(self._flat, sizes), strict=True):
            parameter.grad = view.view_as(parameter)
        self._divisor = 1.0
        self._norm: float | None = None

    def end_pass(self) -> None:
        """End a backward pass, which invalidates the norm."""
        self._norm = None

    def divide(self, by: float) -> None:
        """Divide all gradients when they are clipped."""
        self._divisor *= by

    def norm(self) -> float:
        """Return the Euclidean norm of all gradients."""
        if self._norm is None:
            self._norm = float(torch.linalg.vector_norm(self._flat))
        return self._norm / self._divisor

    def sum_over_ranks(self) -> None:
        """Sum the gradients of the full model over ranks, [parameters] → [parameters]."""
        sum_over_ranks(self._flat, self._group)
        if self._group is not None:
            self._norm = None

    def clip(self, limit: float) -> float:
        """Scale the gradients down to norm `limit` if they exceed it; returns the norm before."""
        norm = self.norm()
        scale = (limit / norm if norm > limit else 1.0) / self._divisor
        if scale != 1.0:
            self._flat.mul_(scale)
        self._divisor, self._norm = 1.0, None
        return norm

    def free(self) -> None:
        """Drop the buffer and the parameters' gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        self._flat = self._flat.new_zeros(0)
