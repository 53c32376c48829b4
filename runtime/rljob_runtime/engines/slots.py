"""The rows of a running batch: KV cache, tokens so far, and who sits where.

Called by the `torch` rollout engine. Running sequences fill the first rows without a gap, so that
every step costs what they cost; the last ones move into rows that become free.
"""

# S rows, B rows of a call, T longest response, L longest sequence
# N kept heads of a token, W width of each

import torch
from torch import Tensor

from rljob_runtime.engines.base import Sampling
from rljob_runtime.engines.waiting import Admitted, Seat
from rljob_runtime.models.architecture import Architecture


class Slots:
    """Rows of sequences and the counters of each, on the cache's device.

    cache: [layers, tensors, S, N, L, W], owned by the engine. tokens_ST, logprobs_ST: new tokens so far.
    counts_S: how many; limits_S: how many at most. begun_S: response tokens before them. lengths_S:
    tokens in the cache. seeds_S: of the uniforms. last_S: newest token, not yet in the cache. window:
    longest of the running lengths.
    """

    def __init__(self, cache: Tensor, sampling: Sampling) -> None:
        rows, device = cache.shape[2], cache.device
        longest_response = sampling.max_response_length
        self.cache, self._sampling = cache, sampling
        self.seats: list[Seat] = []
        self.window = 0
        self.tokens_ST = torch.zeros(rows, longest_response, dtype=torch.int64, device=device)
        self.logprobs_ST = torch.zeros(rows, longest_response, device=device)
        counters = torch.zeros(6, rows, dtype=torch.int64, device=device)
        self.counts_S, self.limits_S, self.begun_S = counters[:3]
        self.lengths_S, self.seeds_S, self.last_S = counters[3:]
        self._counters = counters

    @property
    def num_free(self) -> int:
        """Rows without a sequence."""
        return self.cache.shape[2] - len(self.seats)

    def add(self, admitted: Admitted) -> slice:
        """Seat sequences in the next rows; returns the rows."""
        seats = admitted.seats
        rows = slice(len(self.seats), len(self.seats) + len(seats))
        self.cache[:, :, rows, :, : admitted.cache.shape[4]] = admitted.cache
        self.counts_S[rows] = 0
        self.limits_S[rows] = torch.tensor([seat.group.limit(self._sampling) for seat in seats])
        self.begun_S[rows] = torch.tensor([len(seat.group.begun) for seat in seats])
        self.lengths_S[rows] = torch.tensor([seat.prefix_length for seat in seats])
        self.seeds_S[rows] = torch.tensor([seat.seed for seat in seats])
        self.seats += seats
        self.window = max(self.window, *(seat.prefix_length for seat in seats))
        return rows

    def append(self, rows: slice, tokens_B: Tensor, logprobs_B: Tensor) -> None:
        """Note one more new token of each of these rows."""
        counts_B = self.counts_S[rows]
        index_B = torch.arange(rows.start, rows.stop, device=counts_B.device)
        self.tokens_ST[index_B, counts_B] = tokens_B
        self.logprobs_ST[index_B, counts_B] = logprobs_B
        self.last_S[rows] = tokens_B
        counts_B += 1

    def response(self, row: int) -> tuple[list[int], list[float]]:
        """New tokens of a row so far, and their log-probs."""
        count = int(self.counts_S[row])
        return self.tokens_ST[row, :count].tolist(), self.logprobs_ST[row, :count].tolist()

    def remove(self, rows: list[int]) -> None:
        """Free these rows; running ones from the end move into the holes, in order."""
        num_left = len(self.seats) - len(rows)
        gone = set(rows)
        holes = [row for row in rows if row < num_left]
        moved = [row for row in range(num_left, len(self.seats)) if row not in gone]
        for hole, row in zip(holes, moved, strict=True):
            self.seats[hole] = self.seats[row]
        del self.seats[num_left:]
        if holes:
            target, source = (torch.tensor(x, device=self.cache.device) for x in (holes, moved))
            self.cache[:, :, target, :, : self.window] = self.cache[:, :, source, :, : self.window]
            self._counters[:, target] = self._counters[:, source]
            self.tokens_ST[target] = self.tokens_ST[source]
            self.logprobs_ST[target] = self.logprobs_ST[source]
        self.window = int(self.lengths_S[:num_left].max()) if num_left else 0


def new_cache(
    architecture: Architecture, *, rows: int, length: int, dtype: torch.dtype, device: str
) -> Tensor:
    """An empty KV cache [layers, tensors, S, N, L, W]: of each token what `kept_shape` says.

    Zeros, for masked garbage must stay finite.
    """
    tensors, heads, width = architecture.kept_shape
    shape = (architecture.num_layers, tensors, rows, heads, length, width)
    return torch.zeros(shape, dtype=dtype, device=device)
