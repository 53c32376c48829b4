"""Metrics of one optimizer step: summed over micro-batches, reduced over ranks, divided once."""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.algorithms.base import LossOutput
from rljob_runtime.backends.collectives import max_over_ranks, sum_over_ranks


class MetricSums:
    """Sums and maxima so far. loss: this rank's part of the loss."""

    def __init__(self) -> None:
        self.loss = 0.0
        self._token_sums: dict[str, float] = {}
        self._maxima: dict[str, float] = {}

    def add(self, output: LossOutput, *, entropy: Tensor) -> None:
        """Add a micro-batch; entropy: sum over its tokens."""
        self.loss += float(output.loss.detach())
        for name, value in (output.token_sums | {"entropy": entropy}).items():
            self._token_sums[name] = self._token_sums.get(name, 0.0) + float(value)
        for name, value in output.maxima.items():
            self._maxima[name] = max(self._maxima.get(name, -torch.inf), float(value))

    def reduce(self, group: ProcessGroup | None, *, num_tokens: int) -> dict[str, float]:
        """Metrics over all ranks; 8 bytes each. A step without tokens reports zeros."""
        sums = torch.tensor([self.loss, *self._token_sums.values()], dtype=torch.float64)
        maxima = torch.tensor(list(self._maxima.values()), dtype=torch.float64)
        sum_over_ranks(sums, group)
        max_over_ranks(maxima, group)
        means = (sums[1:] / max(num_tokens, 1)).tolist()
        largest = maxima.tolist() if num_tokens else [0.0] * len(maxima)
        return {
            "loss": float(sums[0]),
            **dict(zip(self._token_sums, means, strict=True)),
            **dict(zip(self._maxima, largest, strict=True)),
        }
