"""The picture of a run's steps over time, with deaths and without. Called by `write_docs.py`."""

from collections.abc import Mapping
from typing import Any

from benchmarks.support.pictures import Panel, panels_svg


def recovery_picture(document: Mapping[str, Any]) -> str:
    """The first run of each side."""
    lines = {side: courses[0] for side, courses in document["courses"].items()}
    every = document["steps_a_death"]
    panel = Panel(
        title=f"Steps, with a death every {every}",
        across="seconds since the first step",
        lines=lines,
        from_zero=True,
        width=900,
    )
    return panels_svg([panel])
