"""The rows of a running batch: the KV cache, the tokens so far, and the sequence of each row.

Called by the `torch` rollout engine. Running sequences fill the first rows without a gap, so that a step
costs as much as they do; the last ones move into rows that become free.
"""

# S rows, B rows of a call, T longest response, R tokens of a row
# M layers with experts of this process, K experts of a token

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rljob_runtime.models.fused.kept import KVCache, Prefixes, Reach
from rljob_runtime.rollout.prompts import Prompts
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The sequence of a row. seed: of its uniforms. version, switches: as in `Generated`. position: of its
    first new token, where pictures shift it from its index. routes: of its prefix, from the group's known
    ones on, [n, M, K]; None where they are not kept."""

    uid: str
    seed: int
    group: PromptGroup
    version: int
    switches: list[tuple[int, int]] = field(default_factory=list)
    position: int | None = None
    routes: Tensor | None = None

    @property
    def prefix_length(self) -> int:
        """The number of tokens before its first new one."""
        return len(self.group.token_ids) + len(self.group.begun)

    @property
    def first_position(self) -> int:
        """The position of its first new token."""
        return self.prefix_length if self.position is None else self.position


class Slots:
    """Rows of sequences and the counters of each, on the cache's device.

    cache: the KV cache, owned by the engine. prompts: those in it. tokens_ST, logprobs_ST: new tokens so far.
    counts_S: their number; limits_S: their largest number. begun_S: response tokens before them. positions_S:
    of the next token in the cache; places_S: its index in the row. seeds_S: of the uniforms. last_S: newest
    token, not yet in the cache. window: largest of the running places.
    """

    def __init__(self, cache: KVCache, prompts: Prompts, sampling: Sampling) -> None:
        rows, device = cache.rows.shape[2], cache.rows.device
        longest_response = sampling.max_response_length
        self.cache, self.prompts, self._sampling = cache, prompts, sampling
        self.seats: list[Seat] = []
        self.window = 0
        self.tokens_ST = torch.zeros(rows, longest_response, dtype=torch.int64, device=device)
        self.logprobs_ST = torch.zeros(rows, longest_response, device=device)
        counters = torch.zeros(7, rows, dtype=torch.int64, device=device)
        self.counts_S, self.limits_S, self.begun_S = counters[:3]
        self.positions_S, self.places_S, self.seeds_S, self.last_S = counters[3:]
        self._counters = counters
        self._prefixes: Prefixes | None = None
        self._routes_STMK: Tensor | None = None
        self._moved = True

    @property
    def num_free(self) -> int:
        """The number of rows without a sequence."""
        return len(self.counts_S) - len(self.seats)

    @property
    def running(self) -> list[PromptGroup]:
        """The group of each row with a sequence."""
        return [seat.group for seat in self.seats]

    def add(self, seats: list[Seat]) -> slice:
        """Put sequences into the next rows; return the rows."""
        rows = slice(len(self.seats), len(self.seats) + len(seats))
        lengths = torch.tensor([seat.prefix_length for seat in seats])
        self.counts_S[rows] = 0
        self.limits_S[rows] = torch.tensor([seat.group.limit(self._sampling) for seat in seats])
        self.begun_S[rows] = torch.tensor([len(seat.group.begun) for seat in seats])
        self.positions_S[rows] = torch.tensor([seat.first_position for seat in seats])
        self.places_S[rows] = lengths if self.prompts.in_rows else 0
        self.seeds_S[rows] = torch.tensor([seat.seed for seat in seats])
        self.seats += seats
        if self.prompts.in_rows:
            self.window = max(self.window, int(lengths.max()))
        self._moved = True
        return rows

    def reach(self) -> Reach:
        """Return the cache positions of the newest token of each running sequence."""
        if self._moved:
            self._prefixes, self._moved = self.prompts.prefixes(self.running), False
        running = slice(0, len(self.seats))
        return Reach(
            positions_B=self.positions_S[running],
            row_index_B=self.places_S[running],
            window=self.window + 1,
            prefixes=self._prefixes,
        )

    def advance(self) -> None:
        """Advance all running sequences by one token."""
        running = slice(0, len(self.seats))
        self.positions_S[running] += 1
        self.places_S[running] += 1
        self.window += 1

    def append(self, rows: slice, tokens_B: Tensor, logprobs_B: Tensor) -> None:
        """Store one more new token of each of these rows."""
        counts_B = self.counts_S[rows]
        index_B = torch.arange(rows.start, rows.stop, device=counts_B.device)
        self.tokens_ST[index_B, counts_B] = tokens_B
        self.logprobs_ST[index_B, counts_B] = logprobs_B
        self.last_S[rows] = tokens_B
        counts_B += 1

    def append_routes(self, routes_BMK: Tensor) -> None:
        """Store the routes of the newest token of each running sequence, on the host."""
        if self._routes_STMK is None:
            self._routes_STMK = routes_BMK.new_empty(*self.tokens_ST.shape, *routes_BMK.shape[1:])
        running = torch.arange(len(routes_BMK))
        self._routes_STMK[running, self.counts_S[: len(running)].cpu() - 1] = routes_BMK

    def routes(self, row: int, count: int) -> Tensor | None:
        """Return the routes of a row with this many new tokens: those of its seat, and of all new tokens but
        the last, [n, M, K]."""
        prefix = self.seats[row].routes
        if prefix is None or self._routes_STMK is None:
            return prefix
        return torch.cat([prefix, self._routes_STMK[row, : count - 1]])

    def switched(self, version: int) -> None:
        """Record that weights of this version generate all later tokens."""
        for row, seat in enumerate(self.seats):
            seat.switches.append((int(self.counts_S[row]), version))

    def response(self, row: int) -> tuple[list[int], list[float]]:
        """Return the new tokens of a row so far, and their log-probs."""
        count = int(self.counts_S[row])
        return self.tokens_ST[row, :count].tolist(), self.logprobs_ST[row, :count].tolist()

    def remove(self, rows: list[int], *, waiting: Iterable[PromptGroup]) -> None:
        """Free these rows; running sequences from the end move into the holes, in order.

        waiting: groups whose prompts are needed again.
        """
        num_left = len(self.seats) - len(rows)
        removed = set(rows)
        holes = [row for row in rows if row < num_left]
        moved = [row for row in range(num_left, len(self.seats)) if row not in removed]
        for hole, row in zip(holes, moved, strict=True):
            self.seats[hole] = self.seats[row]
        del self.seats[num_left:]
        if holes:
            cache = self.cache.rows
            target, source = (torch.tensor(x, device=cache.device) for x in (holes, moved))
            cache[:, :, target, :, : self.window] = cache[:, :, source, :, : self.window]
            self._counters[:, target] = self._counters[:, source]
            self.tokens_ST[target] = self.tokens_ST[source]
            self.logprobs_ST[target] = self.logprobs_ST[source]
            if self._routes_STMK is not None:
                self._routes_STMK[holes] = self._routes_STMK[moved]
        self.window = int(self.places_S[:num_left].max()) if num_left else 0
        self.prompts.retain([*self.running, *waiting])
        self._moved = True
