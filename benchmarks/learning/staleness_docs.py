"""What docs/benchmarks.md shows of `staleness.py`: a table by η and correction, and curves."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.support.pictures import Panel, Point, panels_svg
from benchmarks.support.runs import quarters
from benchmarks.support.tables import table

PICTURE = "images/staleness.svg"
WINDOWS = 12
Run = Mapping[str, Any]


def staleness_parts(document: Mapping[str, Any]) -> list[str]:
    """The picture and the table."""
    runs = document["runs"]
    first = runs[0]
    return [
        f"![Held-out accuracy by the bound of staleness, and rewards by step]({PICTURE})",
        f"{len(first['reward'])} steps of 8 prompts with 8 samples each, learning rate "
        f"{document['rate']:g}, {len(_of(runs, first['bound'], first['correction']))} seeds; means over "
        f"steps and seeds, accuracy on {first['prompts']} held-out prompts:",
        _table(runs),
    ]


def staleness_picture(document: Mapping[str, Any]) -> str:
    """Accuracy after training against η, and rewards by step at the greatest η, as an SVG."""
    runs = document["runs"]
    bounds, corrections = _bounds(runs), _corrections(runs)
    after = {
        name: [(float(bound), [run["after"] for run in _of(runs, bound, name)]) for bound in bounds]
        for name in corrections
    }
    fresh = {"η = 0": [run for run in runs if run["bound"] == 0]}
    late = {name: _of(runs, bounds[-1], name) for name in corrections}
    steps = len(runs[0]["reward"])
    return panels_svg(
        [
            Panel(
                title=f"held-out accuracy after {steps} steps",
                across="η: versions that samples may be behind",
                lines={name: [(x, mean(y)) for x, y in points] for name, points in after.items()},
                bands={
                    name: [(x, min(y), max(y)) for x, y in points] for name, points in after.items()
                },
                percent=True,
            ),
            Panel(
                title=f"reward, η = {bounds[-1]} beside η = 0",
                across="step",
                lines={name: _smooth(of) for name, of in (late | fresh).items() if of},
            ),
        ]
    )


def _smooth(runs: Sequence[Run]) -> list[Point]:
    """Mean reward of each window of steps, over the runs."""
    steps = len(runs[0]["reward"])
    ends = [steps * number // WINDOWS for number in range(WINDOWS + 1)]
    return [
        ((low + high) / 2, mean(mean(run["reward"][low:high]) for run in runs))
        for low, high in itertools.pairwise(ends)
        if high > low
    ]


def _table(runs: Sequence[Run]) -> str:
    heads = [
        "", "staleness, mean", "greatest", "mismatch KL", "largest", "weight", "clipped",
        "reward, last quarter", "held out, before", "after", "each seed",
    ]  # fmt: skip
    rows = []
    for bound in _bounds(runs):
        for name in _corrections(runs):
            of = _of(runs, bound, name)
            rows.append(
                [
                    f"η = {bound}",
                    name,
                    f"{_mean(of, 'staleness'):.2f}",
                    f"{max(run['greatest'] for run in of):g}",
                    f"{_mean(of, 'kl'):.2g}",
                    f"{max(run['furthest'] for run in of):.2g}",
                    f"{_mean(of, 'weight'):.3f}",
                    f"{_mean(of, 'clipped'):.2%}",
                    f"{mean(quarters(run['reward'])[-1] for run in of):.3f}",
                    f"{_mean(of, 'before'):.1%}",
                    f"{_mean(of, 'after'):.1%}",
                    ", ".join(f"{run['after']:.1%}" for run in of),
                ]
            )
    return table(heads, rows)


def _mean(runs: Sequence[Run], figure: str) -> float:
    return mean(run[figure] for run in runs)


def _of(runs: Sequence[Run], bound: int, correction: str) -> list[Run]:
    return [run for run in runs if (run["bound"], run["correction"]) == (bound, correction)]


def _bounds(runs: Sequence[Run]) -> list[int]:
    return sorted({run["bound"] for run in runs})


def _corrections(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run["correction"] for run in runs))
