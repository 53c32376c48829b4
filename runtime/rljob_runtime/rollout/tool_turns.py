"""Turns that end with calls of tools, and continue after their answers. A `Partner` of `turns`."""

from collections.abc import Callable, Sequence

from rljob_runtime.rollout.rollout_engine import Finish, Generated, Idle, Sampling, ToolSettings
from rljob_runtime.rollout.turns import MultiTurnSample
from rljob_runtime.task.tools.answers import Answer, ToolCall
from rljob_runtime.task.tools.call_format import Call


class ToolTurns:
    """The tool calls of one call of `generate`."""

    follows = Answer

    def __init__(self, tools: ToolSettings, sampling: Sampling) -> None:
        self._tools, self._sampling = tools, sampling

    @property
    def idle(self) -> Idle:
        """The time spent waiting. See `Partner.idle`."""
        return self._tools.idle

    def may_end(self, turn_ids: Callable[[int], list[int]], tokens: list[int]) -> list[bool]:
        """Return which rows end their turn with a call."""
        form = self._tools.form
        return [
            form.completes(token) and form.call(turn_ids(row)) is not None
            for row, token in enumerate(tokens)
        ]

    def request_reply(
        self, sample: MultiTurnSample, generated: Generated, on_reply: Callable[[Answer], None]
    ) -> Finish | None:
        """Make the call of the turn; a turn without one, and the last one, end the sample."""
        call = self._call(sample, generated)
        if call is None:
            return generated.finish
        if len(sample.ends) == self._tools.most_turns:
            return "turns"
        sample.calling = call.tool
        self._tools.pool.call(call.tool, call.text, on_reply)
        return None

    def reply_tokens(self, sample: MultiTurnSample, answer: Answer) -> list[int]:
        """Return the answer's tokens."""
        call = ToolCall(tool=sample.calling, outcome=answer.outcome, seconds=answer.seconds)
        sample.calls.append(call)
        return self._tools.form.answer_ids(sample.calling, answer.text)

    def end(self, sample: MultiTurnSample) -> None:
        """Do nothing. See `Partner.end`."""

    def deadline(self, waiting: Sequence[MultiTurnSample]) -> tuple[float, str]:
        """Return the longest wait, and the error text. See `Partner.deadline`."""
        problem = f"none of {len(waiting)} calls of tools (spec.rollout.tools) was answered"
        return self._tools.pool.most_seconds(len(waiting)), problem

    def _call(self, sample: MultiTurnSample, generated: Generated) -> Call | None:
        if generated.finish != "stop" or generated.token_ids[-1] in self._sampling.eos_ids:
            return None
        return self._tools.form.call(sample.turn_ids)
