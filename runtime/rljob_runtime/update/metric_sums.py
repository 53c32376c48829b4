"""Metrics of one optimizer step: summed over micro-batches, reduced over ranks, divided once."""

# M layers with experts, E experts of each

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.algorithms.algorithm import LossOutput
from rljob_runtime.devices.collectives import (
    max_over_ranks,
    sum_over_ranks,
    union_over_ranks,
)
from rljob_runtime.models.policy_model import TokenLogprobs


class MetricSums:
    """Sums and maxima of the micro-batches so far. loss: this rank's share of the loss."""

    def __init__(self) -> None:
        self.loss = 0.0
        self._token_sums: dict[str, float] = {}
        self._maxima: dict[str, float] = {}
        self._expert_tokens_ME: Tensor | None = None

    def add(
        self, loss: Tensor, output: LossOutput, token_logprobs: TokenLogprobs, *, num_tokens: int
    ) -> None:
        """Add a micro-batch. loss: the minimized value; token_logprobs: the model's outputs for its
        tokens."""
        assert token_logprobs.entropy_T is not None, "training asks for entropies"
        self.loss += float(loss.detach())
        sums = output.token_sums | {"entropy": token_logprobs.entropy_T.sum()}
        if (load := token_logprobs.router_load) is not None:
            sums["router/balance"] = load.balance_loss().detach() * num_tokens
            tokens_ME = load.tokens_ME().cpu()
            before_ME = self._expert_tokens_ME
            self._expert_tokens_ME = tokens_ME if before_ME is None else before_ME + tokens_ME
        for name, value in sums.items():
            self._token_sums[name] = self._token_sums.get(name, 0.0) + float(value)
        for name, value in output.maxima.items():
            self._maxima[name] = max(self._maxima.get(name, -torch.inf), float(value))

    def reduce(self, group: ProcessGroup | None, *, num_tokens: int) -> dict[str, float]:
        """Return metrics over all ranks; 8 bytes each after their names, and as many per expert of each
        layer.

        A step without tokens reports zeros; metrics that a rank without samples lacks count 0.
        """
        names = union_over_ranks(self._token_sums, group)
        highest = union_over_ranks(self._maxima, group)
        token_sums = [self._token_sums.get(name, 0.0) for name in names]
        sums = torch.tensor([self.loss, *token_sums], dtype=torch.float64)
        local_maxima = [self._maxima.get(name, -torch.inf) for name in highest]
        maxima = torch.tensor(local_maxima, dtype=torch.float64)
        sum_over_ranks(sums, group)
        max_over_ranks(maxima, group)
        means = (sums[1:] / max(num_tokens, 1)).tolist()
        largest = maxima.tolist() if num_tokens else [0.0] * len(maxima)
        return {
            "loss": float(sums[0]),
            **dict(zip(names, means, strict=True)),
            **dict(zip(highest, largest, strict=True)),
            **self._expert_shares(group),
        }

    def _expert_shares(self, group: ProcessGroup | None) -> dict[str, float]:
        """Return the busiest expert's load relative to the mean of its layer, and the share of idle experts.

        [M, E] → [M, E].
        """
        if self._expert_tokens_ME is None:
            return {}
        sum_over_ranks(self._expert_tokens_ME, group)
        tokens_ME = self._expert_tokens_ME.double()
        mean_M1 = tokens_ME.mean(1, keepdim=True).clamp(min=1e-9)
        return {
            "router/load_max": float((tokens_ME / mean_M1).max()),
            "router/idle": float((tokens_ME == 0).double().mean()) if tokens_ME.any() else 0.0,
        }
