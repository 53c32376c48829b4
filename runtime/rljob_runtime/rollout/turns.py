"""Samples of several turns: those that wait for a reply, and their tokens so far.

Created for each call of `generate` of a job with tools or a game. A sample whose turn ends, and is not its
last one, leaves the running batch; the others continue. Once the reply is known, the sample returns as a
separate group that was begun. Its prefix is computed again, by the current weights. The policy's counterpart
is a `Partner`: `tool_turns` or `game_turns`. Devices that share a model take the same steps: the first of
them makes the requests and broadcasts the replies.
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
class MultiTurnSample:
    """A sample with its turns so far. group: as requested, with this sample alone. tokens: generated and
    inserted; drawn: which are generated; ends: where the policy's turns ended; turn: where its newest begins.
    logprobs, versions: of those generated in this call. calling: the tool that it waits for. game: the game
    that it plays. routes: of this call; routed: tokens with the prompt's whose routes are known."""

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
    def of(cls, group: PromptGroup, uid: str, seed: int) -> "MultiTurnSample":
        """Return one sample of a group, with what it has begun."""
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
        """The tokens of the newest turn."""
        return self.tokens[self.turn :]

    def earlier_turns(self) -> list[list[int]]:
        """Return the policy's tokens of each turn but the newest, which has ended."""
        starts = [0, *self.ends[:-1]]
        return [
            [
                token
                for index, token in enumerate(self.tokens[start:end], start)
                if self.drawn[index]
            ]
            for start, end in zip(starts, self.ends[:-1], strict=False)
        ]

    def add_turn(self, generated: Generated) -> None:
        """Append the policy's tokens: a turn, or as much of it as there was room for."""
        self.tokens += generated.token_ids
        if generated.finish == "stop":
            self.ends.append(len(self.tokens))
        self.drawn += [True] * len(generated.token_ids)
        self.logprobs += generated.logprobs
        self.versions += generated.versions
        self.routes += generated.routes
        self.routed = len(self.group.token_ids) + len(self.tokens) - 1

    def add_inserted(self, ids: Sequence[int]) -> None:
        """Append tokens that follow the turn."""
        self.tokens += ids
        self.drawn += [False] * len(ids)
        self.turn = len(self.tokens)

    def to_generated(self, uid: str, finish: Finish) -> Generated:
        """Return the tokens of the sample from this call: up to its end, or up to its budget."""
        first = len(self.group.begun)
        cut = finish != "budget" and (not self.ends or self.ends[-1] <= self.turn)
        changes = [
            (index, version)
            for index, version in enumerate(self.versions)
            if index and version != self.versions[index - 1]
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
    """The policy's counterpart. follows: the type of the reply to a turn."""

    follows: type[Any]

    @property
    def idle(self) -> Idle:
        """Seconds in which the engine waited for replies alone."""
        ...

    def may_end(self, turn_ids: Callable[[int], list[int]], tokens: list[int]) -> list[bool]:
        """Return which rows end their turn, apart from those with an end token or a stop string. tokens: the
        newest of each row; turn_ids: returns a row's turn."""
        ...

    def request_reply(
        self, sample: MultiTurnSample, generated: Generated, on_reply: Callable[[Any], None]
    ) -> Finish | None:
        """Request the reply to the sample's last turn, which is `generated`. `on_reply` is called with it
        once, in another thread. Return None, or why the sample ends with that turn."""
        ...

    def reply_tokens(self, sample: MultiTurnSample, reply: Any) -> list[int] | Finish:
        """Return the tokens that follow the turn, or why the sample ends."""
        ...

    def end(self, sample: MultiTurnSample) -> None:
        """Release the resources of a sample that has ended."""
        ...

    def deadline(self, waiting: Sequence[MultiTurnSample]) -> tuple[float, str]:
        """Return the longest wait until one of these samples has its reply, and the error text where none
        arrives."""
        ...


class Turns:
    """The open samples of one call of `generate`. replica: the devices that share the model, which all have
    the same samples; None for one device."""

    def __init__(
        self, partner: Partner, sampling: Sampling, replica: ProcessGroup | None = None
    ) -> None:
        self._partner, self._sampling, self._replica = partner, sampling, replica
        self._shared: TypeAdapter[Any] = TypeAdapter(list[tuple[str, partner.follows]] | str)  # type: ignore[arg-type,name-defined]
        self._open: dict[str, MultiTurnSample] = {}
        self._waiting: set[str] = set()
        self._replies: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.may_end = partner.may_end

    @property
    def pending(self) -> int:
        """The number of samples that wait for a reply."""
        return len(self._waiting)

    def begin(self, groups: Sequence[PromptGroup]) -> Sequence[PromptGroup]:
        """Return the requested groups whose samples can be generated immediately: all of them."""
        return groups

    def take(self, ended: Sequence[tuple[PromptGroup, int, Generated]]) -> list[Generated]:
        """Take turns that have ended, with their samples' groups and seeds. Return the samples that end with
        them; replies to the others are requested."""
        samples = []
        for group, seed, generated in ended:
            sample = self._open.pop(generated.uid, None) or MultiTurnSample.of(
                group, generated.uid, seed
            )
            sample.add_turn(generated)
            finish = self._request_reply(sample, generated)
            if finish is not None:
                samples.append(self._ended(sample, generated.uid, finish))
        return samples

    def answered(self, *, wait: bool) -> tuple[list[PromptGroup], list[Generated]]:
        """Return samples whose replies are known: those that continue, as groups, and those that end.

        wait: until there is one. Raises WorkerError where none arrives before the deadline.
        """
        continued: list[PromptGroup] = []
        ended: list[Generated] = []
        for uid, reply in self._replies_of_replica(wait=wait):
            self._waiting.remove(uid)
            sample = self._open[uid]
            ids = self._partner.reply_tokens(sample, reply)
            room = self._sampling.max_response_length - len(sample.tokens)
            if isinstance(ids, str) or len(ids) >= room:
                finish = ids if isinstance(ids, str) else "length"
                ended.append(self._ended(self._open.pop(uid), uid, finish))
                continue
            sample.add_inserted(ids)
            next_turn = sample.group.continued_after(sample.tokens, routed=sample.routed)
            if next_turn.budget is not None and next_turn.budget <= 0:
                ended.append(self._ended(self._open.pop(uid), uid, "budget"))
            else:
                continued.append(next_turn)
        return continued, ended

    def _request_reply(self, sample: MultiTurnSample, generated: Generated) -> Finish | None:
        uid, replies = generated.uid, self._replies
        self._open[uid] = sample
        self._waiting.add(uid)
        finish = self._partner.request_reply(
            sample, generated, lambda reply: replies.put((uid, reply))
        )
        if finish is not None:
            self._waiting.remove(uid)
            del self._open[uid]
        return finish

    def _ended(self, sample: MultiTurnSample, uid: str, finish: Finish) -> Generated:
        self._partner.end(sample)
        return sample.to_generated(uid, finish)

    def _replies_of_replica(self, *, wait: bool) -> list[tuple[str, Any]]:
        """Return the replies of the first device of the replica; its error is raised on all."""
        if self._replica is None:
            return self._local_replies(wait=wait)
        packed = b""
        if self._replica.rank() == 0:
            try:
                packed = self._shared.dump_json(self._local_replies(wait=wait))
            except WorkerError as error:
                packed = self._shared.dump_json(str(error))
        replies: list[tuple[str, Any]] | str = self._shared.validate_json(
            broadcast_bytes(packed, self._replica)
        )
        if isinstance(replies, str):
            raise WorkerError(replies)
        return replies

    def _local_replies(self, *, wait: bool) -> list[tuple[str, Any]]:
        replies = []
        if wait:
            timeout, problem = self._partner.deadline([self._open[uid] for uid in self._waiting])
            started = time.monotonic()
            try:
                replies.append(self._replies.get(timeout=timeout))
            except queue.Empty:
                raise WorkerError(f"{problem} in {timeout:.0f} s") from None
            self._partner.idle.add(time.monotonic() - started)
        while not self._replies.empty():
            replies.append(self._replies.get_nowait())
        return replies
