"""A terminal console that prints text only: no text can move the cursor, change the title or create a link.

Names, messages and samples come from jobs, models and clusters, which are untrusted. Used by all commands
that print them with rich.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rljob_api.spec.terminal_text import CONTROL, printable


class TerminalConsole(Console):
    """A rich console that prints texts literally: without markup, emoji and control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does. Control codes of rich itself are retained."""
        for segment in super().render(renderable, options):
            if segment.control or not CONTROL.search(segment.text):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
