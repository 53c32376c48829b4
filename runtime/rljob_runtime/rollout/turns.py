"""Samples of several turns: those that wait for what follows a turn, and what they have so far.

Made for each call of `generate` of a job with tools or a game. A sample whose turn ends, and
is not its last one, leaves the running batch; the others go on. Once it is known what follows, the sample
comes back behind it, as a group of its own that was begun: its prefix is computed again, by the weights of
then. Whom the policy talks with is a `Partner`: `tool_turns` or `game_turns`. Devices that share a model
take the same steps: the first of them asks, and what it hears, and when, all of them hear.
"""

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import TypeAdapter
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import broadcast_bytes
from rljob_runtime.errors import WorkerError
from rljob_runtime.rollout.rollout_engine import (
    Finish,
    Generated,
    Idle,
    PlayedGame,
    PromptGroup,
    Sampling,
)
from rljob_runtime.task.environments.environment import Outcome
from rljob_runtime.task.tools.answers import ToolCall


@dataclass(slots=True, kw_only=True)
class OpenSample:
    """A sample as far as it has come. group: as it was asked for, with this sample alone. tokens: drawn and
    put; drawn: which are which; ends: where the policy's turns ended; turn: where its newest begins.
    logprobs, versions: of those that are drawn now. calling: the tool that it waits for. game: that it
    plays. routes: found now; routed: tokens with the prompt's whose routes are known."""

    group: PromptGroup
    tokens: list[int]
    drawn: list[bool]
    ends: list[int]
    turn: int
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    calling: str = ""
    game: PlayedGame | None = None
    outcome: Outcome | None = None
    routes: bytes = b""
    routed: int = 0

    @classmethod
    def of(cls, group: PromptGroup, uid: str, seed: int) -> "OpenSample":
        """One of a group, as it goes on."""
        return cls(
            group=replace(group, uids=[uid], seeds=[seed]),
            tokens=list(group.begun),
            drawn=list(group.drawn_of_begun),
            ends=list(group.ends),
            turn=group.turn,
            outcome=group.outcome,
            routed=group.routed,
        )

    @property
    def turn_ids(self) -> list[int]:
        """Of the newest turn."""
        return self.tokens[self.turn :]

    def earlier_turns(self) -> list[list[int]]:
        """What the policy drew in each turn but the newest, which has ended."""
        starts = [0, *self.ends[:-1]]
        return [
            [
                token
                for place, token in enumerate(self.tokens[start:end], start)
                if self.drawn[place]
            ]
            for start, end in zip(starts, self.ends[:-1], strict=False)
        ]

    def add_turn(self, made: Generated) -> None:
        """What the policy drew: a turn, or as much of it as there was room for."""
        self.tokens += made.token_ids
        if made.finish == "stop":
            self.ends.append(len(self.tokens))
        self.drawn += [True] * len(made.token_ids)
        self.logprobs += made.logprobs
        self.versions += made.versions
        self.routes += made.routes
        self.routed = len(self.group.token_ids) + len(self.tokens) - 1

    def add_put(self, ids: Sequence[int]) -> None:
        """What was put behind it."""
        self.tokens += ids
        self.drawn += [False] * len(ids)
        self.turn = len(self.tokens)

    def whole(self, uid: str, finish: Finish) -> Generated:
        """What was made of the sample now: its end, or up to its budget."""
        first = len(self.group.begun)
        cut = finish != "budget" and (not self.ends or self.ends[-1] <= self.turn)
        changes = [
            (place, version)
            for place, version in enumerate(self.versions)
            if place and version != self.versions[place - 1]
        ]
        return Generated(
            uid=uid,
            token_ids=self.tokens[first:],
            logprobs=self.logprobs,
            finish=finish,
            version=self.versions[0],
            switches=changes,
            drawn=self.drawn[first:],
            turns=len(self.ends) - len(self.group.ends) + cut,
            ends=self.ends,
            calls=self.calls,
            outcome=self.outcome,
            routes=self.routes,
        )


class Partner(Protocol):
    """Whom the policy talks with. follows: the type of what follows a turn."""

    follows: type[Any]

    @property
    def idle(self) -> Idle:
        """Seconds in which the engine waited for it alone."""
        ...

    def may_end(self, turn_ids: Callable[[int], list[int]], tokens: list[int]) -> list[bool]:
        """Which rows end their turn, beside those with an end token or a stop string. tokens: each one's
        newest; turn_ids: of a row's turn."""
        ...

    def ask(
        self, sample: OpenSample, made: Generated, said: Callable[[Any], None]
    ) -> Finish | None:
        """Ask what follows the sample's last turn, which is `made`; `said` gets it, once, in another thread.
        Or why the sample ends with that turn."""
        ...

    def hear(self, sample: OpenSample, what: Any) -> list[int] | Finish:
        """The tokens that follow the turn, or why the sample ends."""
        ...

    def end(self, sample: OpenSample) -> None:
        """The sample has ended."""
        ...

    def late(self, waiting: Sequence[OpenSample]) -> tuple[float, str]:
        """By when something follows in one of these samples for certain, and what is said where nothing
        does."""
        ...


class Turns:
    """The open samples of one call of `generate`. replica: the devices that share the model, which all have
    the same samples; None for one alone."""

    def __init__(
        self, partner: Partner, sampling: Sampling, replica: ProcessGroup | None = None
    ) -> None:
        self._partner, self._sampling, self._replica = partner, sampling, replica
        self._shared: TypeAdapter[Any] = TypeAdapter(list[tuple[str, partner.follows]] | str)  # type: ignore[arg-type,name-defined]
        self._open: dict[str, OpenSample] = {}
        self._waiting: set[str] = set()
        self._said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.may_end = partner.may_end

    @property
    def pending(self) -> int:
        """Samples that wait for what follows."""
        return len(self._waiting)

    def begin(self, groups: Sequence[PromptGroup]) -> Sequence[PromptGroup]:
        """Of the groups that are asked for, those that may be drawn from at once: all."""
        return groups

    def take(self, ended: Sequence[tuple[PromptGroup, int, Generated]]) -> list[Generated]:
        """Turns that have ended, with their samples' groups and seeds. Returns the samples that end with
        them; what follows in the others is asked for."""
        found = []
        for group, seed, made in ended:
            sample = self._open.pop(made.uid, None) or OpenSample.of(group, made.uid, seed)
            sample.add_turn(made)
            finish = self._ask(sample, made)
            if finish is not None:
                found.append(self._ended(sample, made.uid, finish))
        return found

    def answered(self, *, wait: bool) -> tuple[list[PromptGroup], list[Generated]]:
        """Samples of which it is known what follows: as groups that go on, and those that end.

        wait: until there is one. Raises WorkerError where none comes by when it must.
        """
        going_on: list[PromptGroup] = []
        ended: list[Generated] = []
        for uid, what in self._arrived(wait=wait):
            self._waiting.remove(uid)
            sample = self._open[uid]
            ids = self._partner.hear(sample, what)
            room = self._sampling.max_response_length - len(sample.tokens)
            if isinstance(ids, str) or len(ids) >= room:
                finish = ids if isinstance(ids, str) else "length"
                ended.append(self._ended(self._open.pop(uid), uid, finish))
                continue
            sample.add_put(ids)
            behind = sample.group.behind(sample.tokens, routed=sample.routed)
            if behind.budget is not None and behind.budget <= 0:
                ended.append(self._ended(self._open.pop(uid), uid, "budget"))
            else:
                going_on.append(behind)
        return going_on, ended

    def _ask(self, sample: OpenSample, made: Generated) -> Finish | None:
        uid, said = made.uid, self._said
        self._open[uid] = sample
        self._waiting.add(uid)
        finish = self._partner.ask(sample, made, lambda what: said.put((uid, what)))
        if finish is not None:
            self._waiting.remove(uid)
            del self._open[uid]
        return finish

    def _ended(self, sample: OpenSample, uid: str, finish: Finish) -> Generated:
        self._partner.end(sample)
        return sample.whole(uid, finish)

    def _arrived(self, *, wait: bool) -> list[tuple[str, Any]]:
        """What the first device of the replica hears; its error is one of all."""
        if self._replica is None:
            return self._heard(wait=wait)
        heard = b""
        if self._replica.rank() == 0:
            try:
                heard = self._shared.dump_json(self._heard(wait=wait))
            except WorkerError as error:
                heard = self._shared.dump_json(str(error))
        found: list[tuple[str, Any]] | str = self._shared.validate_json(
            broadcast_bytes(heard, self._replica)
        )
        if isinstance(found, str):
            raise WorkerError(found)
        return found

    def _heard(self, *, wait: bool) -> list[tuple[str, Any]]:
        found = []
        if wait:
            most, what = self._partner.late([self._open[uid] for uid in self._waiting])
            started = time.monotonic()
            try:
                found.append(self._said.get(timeout=most))
            except queue.Empty:
                raise WorkerError(f"{what} in {most:.0f} s") from None
            self._partner.idle.add(time.monotonic() - started)
        while not self._said.empty():
            found.append(self._said.get_nowait())
        return found
