"""What docs/benchmarks.md shows of `precision.py`: bytes and speed, distances, and what runs learn."""

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from benchmarks.support.intervals import said_points, said_seeds, said_share, share_band
from benchmarks.support.pictures import Panel, panels_svg
from benchmarks.support.results import figure
from benchmarks.support.runs import quarters, reward_windows
from benchmarks.support.tables import table

MB = 1e6
HELD = ("update weights", "gradients", "optimizer", "activations", "rollout weights")


PICTURE = "images/precision.svg"
WINDOWS = 12
"""Parts of a run's steps whose rewards one point of a curve is the mean of."""
Run = Mapping[str, Any]


def precision_parts(document: Mapping[str, Any]) -> list[str]:
    """Two tables of engines, the picture of runs and their table, each with a row a precision."""
    sides, runs = document["sides"], document["runs"]
    return [
        f"Engines of a random model of {document['size']} parameters:",
        _engines(sides),
        "Log-probs of what the rollout engine draws, by it and by the update engine, with the weights of the "
        "warm-up for all, in nats a token:",
        _apart(sides),
        f"![Rewards by step in each precision]({PICTURE})",
        f"The quickstart: {_said_steps(runs)}. {said_seeds(len({run['seed'] for run in runs}))} *after* is "
        "of one sample for each held-out word; *expected* is the mean probability of their right answers "
        "under the trained weights, without the chance of drawing, and *beside full precision* what it is "
        "more than full precision's with the same seed, in points:",
        _runs(runs),
    ]


def precision_picture(document: Mapping[str, Any]) -> str:
    """Rewards by step, a panel a size of model. An SVG."""
    runs = document["runs"]
    panels = []
    for size in _sizes(runs):
        curves = {
            name: reward_windows(of, WINDOWS) for name, of in _by_precision(runs, size).items()
        }
        panels.append(
            Panel(
                title=f"reward, {size} parameters",
                across="step",
                lines={name: [(x, mean(y)) for x, y in curve] for name, curve in curves.items()},
                bands={
                    name: [share_band(x, y) for x, y in curve] for name, curve in curves.items()
                },
                width=520,
            )
        )
    return panels_svg(panels)


def _said_steps(runs: Sequence[Run]) -> str:
    steps = {run["size"]: run["steps"] for run in runs}
    return ", ".join(f"{number} steps of {size} parameters" for size, number in steps.items())


def _sizes(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run["size"] for run in runs))


def _by_precision(runs: Sequence[Run], size: str) -> dict[str, list[Run]]:
    """Runs of a size, by seed, of each precision; full precision first."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run["size"] == size:
            found.setdefault(run["precision"], []).append(run)
    return {name: sorted(of, key=lambda run: int(run["seed"])) for name, of in found.items()}


def _engines(sides: Mapping[str, Any]) -> str:
    full = next(iter(sides.values()))
    all_of_full = sum(full[kind] for kind in HELD)
    heads = [*(f"{kind}, MB" for kind in HELD), "all, MB", "of full", "step, s", "tokens/s"]
    rows = []
    for name, side in sides.items():
        total = sum(side[kind] for kind in HELD)
        sizes = [f"{side[kind] / MB:,.1f}" for kind in HELD]
        speeds = [_measured(side["step"]), _measured(side["generate"])]
        rows.append([name, *sizes, f"{total / MB:,.1f}", f"{total / all_of_full:.0%}", *speeds])
    return table(heads, rows)


def _apart(sides: Mapping[str, Any]) -> str:
    names = ("mean log-prob difference", "KL(rollout ‖ update)")
    return table(
        names, [[name, *(f"{side[kind]:.2g}" for kind in names)] for name, side in sides.items()]
    )


def _runs(runs: Sequence[Run]) -> str:
    heads = [
        "", "held out, before", "after", "expected", "beside full precision", "each seed",
        "reward, last quarter", "gradient norm", "mismatch KL", "largest",
    ]  # fmt: skip
    rows = []
    for size in _sizes(runs):
        by_precision = _by_precision(runs, size)
        full = next(iter(by_precision.values()))
        for name, of in by_precision.items():
            more = [run["expected"] - wide["expected"] for run, wide in zip(of, full, strict=True)]
            rows.append(
                [
                    size,
                    name,
                    said_share([run["before"] for run in of]),
                    said_share([run["after"] for run in of]),
                    said_share([run["expected"] for run in of]),
                    said_points(more) if of is not full else "",
                    ", ".join(f"{100 * value:+.1f}" for value in more) if of is not full else "",
                    f"{mean(quarters(run['reward'])[-1] for run in of):.3f}",
                    f"{mean(run['gradient_norm'] for run in of):.2f}",
                    f"{mean(run['kl'] for run in of):.2g}",
                    f"{max(run['max'] for run in of):.2g}",
                ]
            )
    return table(heads, rows)


def _measured(values: Sequence[float]) -> str:
    return figure(median(values), (min(values), max(values)))
