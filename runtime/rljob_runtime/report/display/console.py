"""A terminal that is given text alone: none of it moves the cursor, changes the title or makes a link.

Names, messages and samples come from jobs, models and clusters. Used by all commands that print them with
rich.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rljob_api.spec.terminal_text import CONTROL, printable


class TerminalConsole(Console):
    """rich's, which takes texts as they are: no markup, no emoji, no control characters of theirs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich; its own control codes stay."""
        for segment in super().render(renderable, options):
            if segment.control or not CONTROL.search(segment.text):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
