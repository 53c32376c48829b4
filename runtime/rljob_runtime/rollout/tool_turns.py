"""Turns that end with calls of tools, and go on behind their answers. A `Partner` of `turns`."""

from collections.abc import Callable, Sequence

from rljob_runtime.rollout.rollout_engine import Finish, Generated, Idle, Sampling, ToolSettings
from rljob_runtime.rollout.turns import OpenSample
from rljob_runtime.task.tools.answers import Answer, ToolCall
from rljob_runtime.task.tools.call_format import Call


class ToolTurns:
    """The tools of one call of `generate`."""

    follows = Answer

    def __init__(self, tools: ToolSettings, sampling: Sampling) -> None:
        self._tools, self._sampling = tools, sampling

    @property
    def idle(self) -> Idle:
        """See Partner."""
        return self._tools.idle

    def may_end(self, turn_ids: Callable[[int], list[int]], tokens: list[int]) -> list[bool]:
        """Which rows end their turn with a call."""
        form = self._tools.form
        return [
            form.completes(token) and form.call(turn_ids(row)) is not None
            for row, token in enumerate(tokens)
        ]

    def ask(
        self, sample: OpenSample, made: Generated, said: Callable[[Answer], None]
    ) -> Finish | None:
        """Make the call of the turn; a turn without one, and the last one, end the sample."""
        call = self._call(sample, made)
        if call is None:
            return made.finish
        if len(sample.ends) == self._tools.most_turns:
            return "turns"
        sample.calling = call.tool
        self._tools.pool.call(call.tool, call.text, said)
        return None

    def hear(self, sample: OpenSample, what: Answer) -> list[int]:
        """The answer's tokens."""
        call = ToolCall(tool=sample.calling, outcome=what.outcome, seconds=what.seconds)
        sample.calls.append(call)
        return self._tools.form.answer_ids(sample.calling, what.text)

    def end(self, sample: OpenSample) -> None:
        """See Partner."""

    def late(self, waiting: Sequence[OpenSample]) -> tuple[float, str]:
        """See Partner."""
        what = f"none of {len(waiting)} calls of tools (spec.rollout.tools) was answered"
        return self._tools.pool.most_seconds(len(waiting)), what

    def _call(self, sample: OpenSample, made: Generated) -> Call | None:
        if made.finish != "stop" or made.token_ids[-1] in self._sampling.eos_ids:
            return None
        return self._tools.form.call(sample.turn_ids)
