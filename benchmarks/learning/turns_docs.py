"""What docs/benchmarks.md shows of `turns.py`: curves with intervals, and a table."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.support.intervals import said_points, said_seeds, said_share, share_band
from benchmarks.support.pictures import Panel, panels_svg
from benchmarks.support.runs import quarters
from benchmarks.support.tables import table

PICTURE = "images/turns.svg"
TOOL, WITHOUT, GAME = "with the calculator", "without it", "the game of guesses"
HELD_OUT, DRAWN = "held out", "won in training"
WINDOW = 5
"""Steps of training whose samples one point of a curve is made of."""
Run = Mapping[str, Any]


def turns_parts(document: Mapping[str, Any]) -> list[str]:
    """The picture and the table."""
    runs = document["runs"]
    seeds = {run["seed"] for run in runs}
    return [
        f"![Held-out products that are right and games that are won, by step]({PICTURE})",
        said_seeds(len(seeds)),
        _table(runs),
    ]


def turns_picture(document: Mapping[str, Any]) -> str:
    """Held-out accuracy by step: of products with the calculator and without, and of games. An SVG."""
    runs = document["runs"]
    games = _of(runs, GAME)
    return panels_svg(
        [
            _panel(
                "products of two digits that are right",
                {f"{HELD_OUT}, {task}": _checks(_of(runs, task)) for task in (TOOL, WITHOUT)},
            ),
            _panel("games that are won", {HELD_OUT: _checks(games), DRAWN: _windows(games)}),
        ]
    )


def _panel(title: str, curves: Mapping[str, Sequence[tuple[float, list[float]]]]) -> Panel:
    return Panel(
        title=title,
        across="step",
        lines={name: [(x, mean(y)) for x, y in curve] for name, curve in curves.items()},
        bands={name: [share_band(x, y) for x, y in curve] for name, curve in curves.items()},
        percent=True,
        from_zero=True,
        width=480,
    )


def _checks(runs: Sequence[Run]) -> list[tuple[float, list[float]]]:
    """The step of each evaluation, and every run's accuracy then."""
    return [
        (at[0][0], [share for _, share in at])
        for at in zip(*(run["accuracy"] for run in runs), strict=True)
    ]


def _windows(runs: Sequence[Run]) -> list[tuple[float, list[float]]]:
    """The middle of each window of steps, and every run's mean reward in it."""
    ends = range(0, len(runs[0]["reward"]) + 1, WINDOW)
    return [
        ((low + high) / 2, [mean(run["reward"][low:high]) for run in runs])
        for low, high in itertools.pairwise(ends)
    ]


def _table(runs: Sequence[Run]) -> str:
    heads = [
        "steps", "held out", "before", "after", "gain, points", "turns a sample, first quarter", "last",
        "each seed, after",
    ]  # fmt: skip
    rows = []
    for task in dict.fromkeys(run["task"] for run in runs):
        of = _of(runs, task)
        before, after = ([run["accuracy"][place][1] for run in of] for place in (0, -1))
        turns = [quarters(run["turns"]) for run in of]
        rows.append(
            [
                task,
                str(len(of[0]["reward"])),
                str(of[0]["prompts"]),
                said_share(before),
                said_share(after),
                said_points([new - old for new, old in zip(after, before, strict=True)]),
                *(f"{mean(several[place] for several in turns):.2f}" for place in (0, -1)),
                ", ".join(f"{100 * share:.1f}" for share in after),
            ]
        )
    return table(heads, rows)


def _of(runs: Sequence[Run], task: str) -> list[Run]:
    return sorted((run for run in runs if run["task"] == task), key=lambda run: int(run["seed"]))
