"""What docs/benchmarks.md shows of `staleness.py`: a table by learning rate, η and correction, and curves."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.support.intervals import said_points, said_seeds, said_share, share_band
from benchmarks.support.pictures import Panel, panels_svg
from benchmarks.support.runs import quarters, reward_windows
from benchmarks.support.tables import table

PICTURE = "images/staleness.svg"
WINDOWS = 12
CORRECTIONS = {"token": "corrected", "none": "not corrected"}
Run = Mapping[str, Any]


def staleness_parts(document: Mapping[str, Any]) -> list[str]:
    """The picture and the table."""
    runs = document["runs"]
    seeds = {run["seed"] for run in runs}
    return [
        f"![Held-out accuracy by the bound of staleness, and rewards by step]({PICTURE})",
        f"{runs[0]['steps']} steps of 8 prompts with 8 samples each, {said_seeds(len(seeds))} Accuracy is on "
        f"{runs[0]['prompts']} held-out prompts; *beside η = 0* is the difference to the run of the same "
        "learning rate and seed, in points:",
        _table(runs),
    ]


def staleness_picture(document: Mapping[str, Any]) -> str:
    """Accuracy after training against η, a panel a learning rate; below, rewards by step. An SVG."""
    runs = document["runs"]
    rates = _rates(runs)
    return panels_svg(
        [
            *(_after(runs, rate) for rate in rates),
            *(_rewards(runs, rate) for rate in rates),
        ],
        columns=len(rates),
    )


def _after(runs: Sequence[Run], rate: float) -> Panel:
    points = {
        said: {
            bound: [run["after"] for run in _of(runs, rate, bound, correction)]
            for bound in _bounds(runs)
        }
        for correction, said in CORRECTIONS.items()
    }
    return Panel(
        title=f"held out, after; rate {rate:g}",
        across="η: versions that samples may be behind",
        lines={name: [(x, mean(y)) for x, y in line.items()] for name, line in points.items()},
        bands={name: [share_band(x, y) for x, y in line.items()] for name, line in points.items()},
        percent=True,
        from_zero=True,
        width=340,
    )


def _rewards(runs: Sequence[Run], rate: float) -> Panel:
    last = _bounds(runs)[-1]
    sides = {
        said: _of(runs, rate, last, correction) for correction, said in CORRECTIONS.items()
    } | {"η = 0": _of(runs, rate, 0, "")}
    windows = {name: reward_windows(side, WINDOWS) for name, side in sides.items()}
    return Panel(
        title=f"reward, η = {last}; rate {rate:g}",
        across="step",
        lines={name: [(x, mean(y)) for x, y in line] for name, line in windows.items()},
        bands={name: [share_band(x, y) for x, y in line] for name, line in windows.items()},
        from_zero=True,
        width=340,
    )


def _table(runs: Sequence[Run]) -> str:
    heads = [
        "", "", "staleness", "mismatch KL", "weight", "reward, last quarter", "held out, before",
        "after", "beside η = 0", "each seed",
    ]  # fmt: skip
    rows = []
    for rate, bound in itertools.product(_rates(runs), _bounds(runs)):
        for correction, said in CORRECTIONS.items() if bound else [("", "")]:
            of, fresh = _of(runs, rate, bound, correction), _of(runs, rate, 0, "")
            lost = [run["after"] - other["after"] for run, other in zip(of, fresh, strict=True)]
            rows.append(
                [
                    f"{rate:g}",
                    f"η = {bound}",
                    said,
                    f"{_mean(of, 'staleness'):.2f}",
                    f"{_mean(of, 'kl'):.2g}",
                    f"{_mean(of, 'weight'):.3f}",
                    f"{mean(quarters(run['reward'])[-1] for run in of):.3f}",
                    said_share([run["before"] for run in of]),
                    said_share([run["after"] for run in of]),
                    said_points(lost) if bound else "",
                    ", ".join(f"{100 * run['after']:.1f}" for run in of),
                ]
            )
    return table(heads, rows)


def _mean(runs: Sequence[Run], figure: str) -> float:
    return mean(run[figure] for run in runs)


def _of(runs: Sequence[Run], rate: float, bound: int, correction: str) -> list[Run]:
    """By seed. Of η = 0 there is one, which both corrections share."""
    found = [
        run
        for run in runs
        if (run["rate"], run["bound"]) == (rate, bound)
        and (not bound or run["correction"] == correction)
    ]
    return sorted(found, key=lambda run: int(run["seed"]))


def _rates(runs: Sequence[Run]) -> list[float]:
    return sorted({run["rate"] for run in runs})


def _bounds(runs: Sequence[Run]) -> list[int]:
    return sorted({run["bound"] for run in runs})
