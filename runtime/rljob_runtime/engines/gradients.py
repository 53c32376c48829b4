"""Gradients of all parameters as views of one flat buffer, which lives for one optimizer step.

Autograd adds into it in place, so that summing over ranks, norm and clipping are single operations
and nothing is copied.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.backends.collectives import sum_over_ranks
from rljob_runtime.backends.ledger import MemoryKind, MemoryLedger


class GradientBuffer:
    """Zeros, and every parameter's `grad` is a view of them. Parameters share one type."""

    def __init__(self, parameters: Mapping[str, Tensor], ledger: MemoryLedger) -> None:
        self._parameters = list(parameters.values())
        sizes = [parameter.numel() for parameter in self._parameters]
        first = self._parameters[0]
        ledger.require(MemoryKind.GRADIENTS, sum(sizes) * first.element_size())
        self._flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        ledger.track(MemoryKind.GRADIENTS, [self._flat])
        for parameter, part in zip(self._parameters, torch.split(self._flat, sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def divide(self, by: float) -> None:
        """Divide all gradients."""
        self._flat.div_(by)

    def norm(self) -> float:
        """Euclidean norm of all gradients together."""
        return float(torch.linalg.vector_norm(self._flat))

    def sum_over(self, group: ProcessGroup | None) -> None:
        """Add up the ranks' gradients; all of the model's bytes, [parameters] → [parameters]."""
        sum_over_ranks(self._flat, group)

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
