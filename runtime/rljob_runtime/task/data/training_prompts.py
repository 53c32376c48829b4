"""Provide training prompts; those with pictures are prepared while devices work on earlier ones.

Called by the prompt feeder. Decoding and scaling a picture takes a few milliseconds of processor time. A
separate thread does it before the next step requests the prompt.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from rljob_runtime.task.data.source import Prompt, PromptSource


class TrainingPrompts:
    """The prompts of the training stream by their positions, from 0. ahead: whether to prepare prompts
    before they are requested.

    end: position after the last one of the run. timeout_seconds: limit of one preparation.
    """

    def __init__(
        self, source: PromptSource, *, ahead: bool, end: int, timeout_seconds: float
    ) -> None:
        self._source, self._end, self._timeout = source, end, timeout_seconds
        self._thread = ThreadPoolExecutor(1, "prompts") if ahead else None
        self._prepared_positions: range = range(0)
        self._preparation: Future[list[Prompt]] | None = None

    def at(self, positions: Sequence[int], *, step: int | None = None) -> list[Prompt]:
        """Return the prompts at these positions, like `PromptSource.train_at`. Raises TimeoutError if
        a preparation does not end."""
        prepared = self._take_prepared()
        if step is not None:
            return self._source.train_at(positions, step=step)
        missing = [position for position in positions if position not in prepared]
        prepared |= zip(missing, self._source.train_at(missing) if missing else [], strict=True)
        return [prepared[position] for position in positions]

    def prepare(self, first: int, number: int) -> None:
        """Begin to prepare so many prompts from this position on: they will be requested next, or
        never."""
        self._take_prepared()
        self._prepared_positions = range(first, min(first + number, self._end))
        if self._thread is not None and self._prepared_positions:
            self._preparation = self._thread.submit(self._source.train_at, self._prepared_positions)

    def _take_prepared(self) -> dict[int, Prompt]:
        """Return the prepared prompts by position. If the preparation failed there are none, and the
        request itself raises the error."""
        pending, self._preparation = self._preparation, None
        if pending is None or pending.exception(self._timeout) is not None:
            return {}
        return dict(zip(self._prepared_positions, pending.result(0), strict=True))
