"""Training prompts, those with pictures prepared while devices work on the ones before.

Called by the prompt feeder. To decode and scale a picture takes a few milliseconds of a processor; in a
thread of its own it is done before the next step asks.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from rljob_runtime.task.data.source import Prompt, PromptSource


class TrainingPrompts:
    """Prompts of the training stream by their positions, from 0. ahead: whether some are prepared before they
    are asked; end: position behind the last one of the run. timeout_seconds: of one preparation."""

    def __init__(
        self, source: PromptSource, *, ahead: bool, end: int, timeout_seconds: float
    ) -> None:
        self._source, self._end, self._timeout = source, end, timeout_seconds
        self._thread = ThreadPoolExecutor(1, "prompts") if ahead else None
        self._asked: range = range(0)
        self._made: Future[list[Prompt]] | None = None

    def at(self, positions: Sequence[int], *, step: int | None = None) -> list[Prompt]:
        """As `PromptSource.train_at`. Raises TimeoutError where what was begun does not end."""
        made = self._taken()
        if step is not None:
            return self._source.train_at(positions, step=step)
        missing = [position for position in positions if position not in made]
        made |= zip(missing, self._source.train_at(missing) if missing else [], strict=True)
        return [made[position] for position in positions]

    def prepare(self, first: int, number: int) -> None:
        """Begin with so many prompts from this position on: they will be asked next, or never."""
        self._taken()
        self._asked = range(first, min(first + number, self._end))
        if self._thread is not None and self._asked:
            self._made = self._thread.submit(self._source.train_at, self._asked)

    def _taken(self) -> dict[int, Prompt]:
        """What was prepared, by position; nothing where that failed, which whoever asks is told then."""
        begun, self._made = self._made, None
        if begun is None or begun.exception(self._timeout) is not None:
            return {}
        return dict(zip(self._asked, begun.result(0), strict=True))
