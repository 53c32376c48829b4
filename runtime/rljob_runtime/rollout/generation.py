"""One call of the `torch` rollout engine: samples enter rows, grow token by token, and leave.

Made by `rollout_torch`. Finished sequences leave the batch at once and waiting ones take their rows in order.
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
from rljob_runtime.rollout.waiting import Waiting

REFILL_SHARE = 8  # rows are refilled once 1/8 of them are free: one prefill for several


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """eos: end tokens. count: is told how many tokens were drawn, whenever some were. turns: None where
    samples have one."""

    share: ModelShare
    slots: Slots
    waiting: Waiting
    sampling: Sampling
    eos: Tensor
    count: Callable[[int], None]
    turns: Turns | AgentTurns | None = None

    def run(self, version: Callable[[], int]) -> Iterator[list[Generated]]:
        """Samples as they end, several at a time. version: of the weights, which may change while it is asked
        for: between two tokens. What the cache keeps of earlier tokens stays as it is."""
        at_once = max(1, self.slots.num_free // REFILL_SHARE)
        finished: list[Generated] = []
        held = version()
        while self._busy or self._pending:
            if self.turns is not None and self._pending:
                if finished and not self._busy:
                    yield finished
                    finished = []
                going_on, ended = self.turns.answered(wait=not self._busy)
                self.waiting.add(going_on)
                finished += ended
            if (now := version()) != held:
                self.slots.switched(held := now)
            with torch.inference_mode():
                finished += self._step(refill=at_once, version=held)
            if len(finished) >= at_once:
                yield finished
                finished = []
        if finished:
            yield finished

    @property
    def _busy(self) -> bool:
        """Whether a sample has something to draw."""
        return bool(self.waiting.left or self.slots.seats)

    @property
    def _pending(self) -> int:
        """Samples that wait for a tool."""
        return 0 if self.turns is None else self.turns.pending

    def _step(self, *, refill: int, version: int) -> list[Generated]:
        """One token for every running sequence; first tokens for new ones once `refill` rows are free."""
        finished: list[Generated] = []
        slots, waiting = self.slots, self.waiting
        if slots.num_free >= min(refill, waiting.left):
            while waiting.can_admit(slots):
                finished += self._advance(*waiting.admit(slots, version))
        if slots.seats:
            running = slice(0, len(slots.seats))
            reach = slots.reach()
            logits_BV = self.share.model.decode(slots.last_S[running], slots.kept, reach)
            slots.advance()
            if self.share.model.keeps_routes:
                slots.append_routes(self.share.model.routes())
            finished += self._advance(running, logits_BV)
        return finished

    def _advance(self, rows: slice, logits_BV: Tensor) -> list[Generated]:
        """Draw a token for each of these rows; returns the responses that it ends."""
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
            [(seat.group, seat.seed, made) for seat, made in zip(seats, finished, strict=True)]
        )

    def _turn_ids(self, row: int) -> list[int]:
        """What the policy has drawn since the last answer of a tool."""
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
