"""One call of the `torch` rollout engine: samples enter rows, grow token by token, and leave.

Created by `rollout_torch`. Finished sequences leave the batch immediately, and waiting ones take their rows
in order.
"""

# B sequences, V vocabulary of this process

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.rollout.agents.agent_turns import AgentTurns
from rljob_runtime.rollout.model_share import ModelShare
from rljob_runtime.rollout.rollout_engine import Generated, Sampling
from rljob_runtime.rollout.sampling import uniforms
from rljob_runtime.rollout.slots import Slots
from rljob_runtime.rollout.turns import Turns
from rljob_runtime.rollout.waiting import WaitingSamples

REFILL_SHARE = 8  # rows are refilled once 1/8 of them are free: one prefill for several


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The state of one call. eos: end tokens. count: called with the number of sampled tokens, whenever there
    are some. turns: None where samples have one."""

    share: ModelShare
    slots: Slots
    waiting: WaitingSamples
    sampling: Sampling
    eos: Tensor
    count: Callable[[int], None]
    turns: Turns | AgentTurns | None = None

    def run(self, version: Callable[[], int]) -> Iterator[list[Generated]]:
        """Yield samples as they end, several at a time. version: returns the version of the weights, which it
        may change, between two tokens. The cached keys and values of earlier tokens stay unchanged."""
        chunk = max(1, self.slots.num_free // REFILL_SHARE)
        finished: list[Generated] = []
        version_in_use = version()
        while self._busy or self._pending:
            if self.turns is not None and self._pending:
                if finished and not self._busy:
                    yield finished
                    finished = []
                continued, ended = self.turns.answered(wait=not self._busy)
                self.waiting.add(continued)
                finished += ended
            if (latest := version()) != version_in_use:
                self.slots.switched(version_in_use := latest)
            with torch.inference_mode():
                finished += self._step(refill=chunk, version=version_in_use)
            if len(finished) >= chunk:
                yield finished
                finished = []
        if finished:
            yield finished

    @property
    def _busy(self) -> bool:
        """Whether a sample has a token to generate."""
        return bool(self.waiting.left or self.slots.seats)

    @property
    def _pending(self) -> int:
        """The number of samples that wait for a reply."""
        return 0 if self.turns is None else self.turns.pending

    def _step(self, *, refill: int, version: int) -> list[Generated]:
        """Generate one token for every running sequence; admit new ones once `refill` rows are free."""
        finished: list[Generated] = []
        slots, waiting = self.slots, self.waiting
        if slots.num_free >= min(refill, waiting.left):
            while waiting.can_admit(slots):
                finished += self._advance(*waiting.admit(slots, version))
        if slots.seats:
            running = slice(0, len(slots.seats))
            reach = slots.reach()
            logits_BV = self.share.model.decode(slots.last_S[running], slots.cache, reach)
            slots.advance()
            if self.share.model.keeps_routes:
                slots.append_routes(self.share.model.routes())
            finished += self._advance(running, logits_BV)
        return finished

    def _advance(self, rows: slice, logits_BV: Tensor) -> list[Generated]:
        """Sample a token for each of these rows; return the responses that it ends."""
        slots, sampling = self.slots, self.sampling
        uniforms_B = uniforms(slots.seeds_S[rows], slots.begun_S[rows] + slots.counts_S[rows])
        tokens_B, logprobs_B = self.share.draw(logits_BV, uniforms_B, sampling)
        slots.append(rows, tokens_B, logprobs_B)
        self.count(len(tokens_B))
        stopped_B = torch.isin(tokens_B, self.eos)
        if sampling.stopped is not None:
            texts = (self._turn_ids(row) for row in range(rows.start, rows.stop))
            stopped_B |= torch.tensor([sampling.stopped(text) for text in texts]).to(
                self.eos.device
            )
        if self.turns is not None:
            calls = self.turns.may_end(
                lambda row: self._turn_ids(rows.start + row), tokens_B.tolist()
            )
            stopped_B |= torch.tensor(calls).to(self.eos.device)
        ended_B = stopped_B | (slots.counts_S[rows] >= slots.limits_S[rows])
        ended = (ended_B.nonzero()[:, 0] + rows.start).tolist()
        if not ended:
            return []
        stopped = stopped_B.tolist()
        finished = [self._generated(row, stopped[row - rows.start]) for row in ended]
        seats = [slots.seats[row] for row in ended]
        slots.remove(ended, waiting=self.waiting.begun)
        if self.turns is None:
            return finished
        return self.turns.take(
            [
                (seat.group, seat.seed, generated)
                for seat, generated in zip(seats, finished, strict=True)
            ]
        )

    def _turn_ids(self, row: int) -> list[int]:
        """Return the tokens that the policy has generated since the last reply."""
        group = self.slots.seats[row].group
        return group.begun[group.turn :] + self.slots.response(row)[0]

    def _generated(self, row: int, stopped: bool) -> Generated:
        token_ids, logprobs = self.slots.response(row)
        seat, routes = self.slots.seats[row], self.slots.routes(row, len(token_ids))
        return Generated(
            uid=seat.uid,
            token_ids=token_ids,
            logprobs=logprobs,
            finish=seat.group.finish(stopped, len(token_ids), self.sampling),
            version=seat.version,
            switches=seat.switches,
            routes=b"" if routes is None else self.share.pack_routes(routes),
        )
