"""Samples of several turns: those that wait for a tool, and what they have so far.

Made for each call of the `torch` rollout engine of a job with tools. A sample whose turn ends with a call
leaves the running batch; the others go on. Once its answer is there, it comes back behind it, as a group
of its own that was begun: its prefix is computed again, by the weights of then.
"""

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_runtime.engines.base import Finish, Generated, PromptGroup, Sampling, ToolSettings
from rljob_runtime.errors import WorkerError
from rljob_runtime.tools.answers import Answer, ToolCall
from rljob_runtime.tools.calls import Call


@dataclass(slots=True, kw_only=True)
class _Open:
    """A sample as far as it has come. tokens: drawn and put; drawn: which are which; logprobs, versions:
    of the drawn ones. calling: the tool that it waits for."""

    group: PromptGroup
    tokens: list[int] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: int = 0
    calls: list[ToolCall] = field(default_factory=list)
    calling: str = ""

    def add_turn(self, made: Generated) -> None:
        """What the policy drew."""
        self.turns += 1
        self.tokens += made.token_ids
        self.drawn += [True] * len(made.token_ids)
        self.logprobs += made.logprobs
        self.versions += made.versions

    def add_answer(self, ids: Sequence[int]) -> None:
        """What a tool put behind it."""
        self.tokens += ids
        self.drawn += [False] * len(ids)

    def whole(self, uid: str, finish: Finish) -> Generated:
        """The sample, ended."""
        changes = [
            (place, version)
            for place, version in enumerate(self.versions)
            if place and version != self.versions[place - 1]
        ]
        return Generated(
            uid=uid,
            token_ids=self.tokens,
            logprobs=self.logprobs,
            finish=finish,
            version=self.versions[0],
            switches=changes,
            drawn=self.drawn,
            turns=self.turns,
            calls=self.calls,
        )


class Turns:
    """The open samples of one call of `generate`. tools: those of `sampling`."""

    def __init__(self, tools: ToolSettings, sampling: Sampling) -> None:
        self._tools, self._sampling = tools, sampling
        self._open: dict[str, _Open] = {}
        self._waiting: set[str] = set()
        self._answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()

    @property
    def pending(self) -> int:
        """Samples that wait for an answer."""
        return len(self._waiting)

    def may_end(self, turn_ids: Callable[[int], list[int]], tokens: list[int]) -> list[bool]:
        """Which rows end their turn with a call. tokens: each one's newest; turn_ids: of a row's turn."""
        form = self._tools.form
        return [
            form.completes(token) and form.call(turn_ids(row)) is not None
            for row, token in enumerate(tokens)
        ]

    def take(self, ended: Sequence[tuple[PromptGroup, int, Generated]]) -> list[Generated]:
        """Turns that have ended, with their samples' groups and seeds. Returns the samples that end with
        them; the tools of the others are called."""
        found = []
        for group, seed, made in ended:
            sample = self._open.pop(made.uid, None) or _Open(
                group=PromptGroup(
                    group=group.group, token_ids=group.token_ids, uids=[made.uid], seeds=[seed]
                )
            )
            sample.add_turn(made)
            call = self._call(made)
            if call is None or sample.turns == self._tools.most_turns:
                finish = made.finish if call is None else "turns"
                found.append(sample.whole(made.uid, finish))
                continue
            self._open[made.uid], sample.calling = sample, call.tool
            self._start(made.uid, call)
        return found

    def answered(self, *, wait: bool) -> tuple[list[PromptGroup], list[Generated]]:
        """Samples whose answers have come: as groups that go on, and those that have no room for it, ended.

        wait: until there is one. Raises WorkerError where none comes by when it must.
        """
        going_on: list[PromptGroup] = []
        ended: list[Generated] = []
        for uid, answer in self._arrived(wait=wait):
            self._waiting.remove(uid)
            sample = self._open[uid]
            sample.calls.append(
                ToolCall(tool=sample.calling, outcome=answer.outcome, seconds=answer.seconds)
            )
            ids = self._tools.form.answer_ids(sample.calling, answer.text)
            if len(sample.tokens) + len(ids) >= self._sampling.max_response_length:
                ended.append(self._open.pop(uid).whole(uid, "length"))
                continue
            sample.add_answer(ids)
            going_on.append(sample.group.behind(sample.tokens))
        return going_on, ended

    def _call(self, made: Generated) -> Call | None:
        if made.finish != "stop" or made.token_ids[-1] in self._sampling.eos_ids:
            return None
        return self._tools.form.call(made.token_ids)

    def _start(self, uid: str, call: Call) -> None:
        self._waiting.add(uid)
        answers = self._answers
        self._tools.pool.call(call.tool, call.text, lambda answer: answers.put((uid, answer)))

    def _arrived(self, *, wait: bool) -> list[tuple[str, Answer]]:
        found = []
        if wait:
            most, started = self._tools.pool.most_seconds(self.pending), time.monotonic()
            try:
                found.append(self._answers.get(timeout=most))
            except queue.Empty:
                raise WorkerError(
                    f"none of {self.pending} calls of tools (spec.rollout.tools) was answered in {most:.0f} s"
                ) from None
            self._tools.idle.add(time.monotonic() - started)
        while not self._answers.empty():
            found.append(self._answers.get_nowait())
        return found
