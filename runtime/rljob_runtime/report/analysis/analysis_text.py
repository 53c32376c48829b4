"""The output of `rljob analyze`: tables for a terminal, and `--json`."""

import math
from collections.abc import Iterator
from typing import Any

import yaml
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rljob_runtime.report.analysis.remedies import Advice
from rljob_runtime.report.analysis.run import Analysis
from rljob_runtime.report.display.wording import percent, seconds_of

NAMES = {
    "generate": "generation",
    "tail": "generation's long tail",
    "inference": "inference",
    "reward": "reward",
    "update": "update",
    "reshard": "reshard",
    "dock": "dock wait",
    "other": "other",
}
MOST_ADVICE = 3


def analysis_tables(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the tables for a terminal."""
    worst = analysis.bottleneck
    first, last = analysis.steps
    yield Text(
        f"{analysis.name}: {seconds_of(analysis.seconds)} a step (median of steps {first} to {last})"
    )
    cost = f"{seconds_of(worst.seconds)} or {percent(worst.share, 0)} of a step"
    yield Text(f"bottleneck: {NAMES[worst.name]}, {cost}", style="bold")
    table = Table(
        title="\nwhat a step waits for", title_justify="left", title_style="bold", box=None
    )
    table.add_column("part", no_wrap=True)
    for column in ("seconds", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("seen in the events", overflow="fold")
    for step_part in analysis.parts:
        cells = (
            NAMES[step_part.name],
            seconds_of(step_part.seconds),
            percent(step_part.share, 0),
            step_part.evidence,
        )
        table.add_row(*map(Text, cells))
    yield table
    if not analysis.advice:
        yield Text(
            f"\n{analysis.no_advice_reason or 'no change of the job is known that would make it faster'}"
        )
    for number, advice in enumerate(analysis.advice[:MOST_ADVICE], 1):
        yield from _advice(number, advice, analysis.seconds)


def analysis_json(analysis: Analysis) -> dict[str, Any]:
    """Build the object for `--json`."""
    return {
        "name": analysis.name,
        "steps": {"first": analysis.steps[0], "last": analysis.steps[1]},
        "secondsPerStep": analysis.seconds,
        "bottleneck": analysis.bottleneck.name,
        "parts": {
            step_part.name: {
                "seconds": step_part.seconds,
                "share": step_part.share,
                "evidence": step_part.evidence,
            }
            for step_part in analysis.parts
        },
        "advice": [
            {
                "part": advice.part,
                "change": advice.change,
                "secondsPerStep": advice.seconds,
                "estimatedBy": advice.how,
                "price": advice.price,
                "note": advice.note,
            }
            for advice in analysis.advice
        ],
        "noAdviceBecause": analysis.no_advice_reason,
    }


def _advice(number: int, advice: Advice, seconds: float) -> Iterator[RenderableType]:
    gain = "time not estimated"
    if advice.seconds is not None and not math.isnan(advice.seconds):
        times = f"{seconds / advice.seconds:.2f} times as fast"
        gain = f"about {seconds_of(advice.seconds)} a step, {times}"
    yield Text(f"\n{number}. for {NAMES[advice.part]}: {gain}", style="bold")
    yield Text(yaml.safe_dump(dict(advice.change), sort_keys=False).rstrip(), style="cyan")
    for label, text in (("estimate", advice.how), ("price", advice.note)):
        if text:
            yield Text(f"{label}: {text}", style="dim")
