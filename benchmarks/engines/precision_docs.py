"""What docs/benchmarks.md shows of `precision.py`: bytes and speed, distances, and what runs learn."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.support.results import figure
from benchmarks.support.tables import table

MB = 1e6
HELD = ("update weights", "gradients", "optimizer", "activations", "rollout weights")


def precision_parts(document: Mapping[str, Any]) -> list[str]:
    """Three tables, each with a row a precision."""
    sides, runs = document["sides"], document["runs"]
    steps = next(iter(runs.values()))[0]["steps"]
    return [
        f"Engines of a random model of {document['size']} parameters:",
        _engines(sides),
        "Log-probs of what the rollout engine draws, by it and by the update engine, with the same trained "
        "weights for all, in nats a token:",
        _apart(sides),
        f"The quickstart over {steps} steps; rewards are means of a quarter of them. *after* is of one "
        "sample for each held-out word; *expected* is the mean probability of their right answers under the "
        "trained weights, without the chance of drawing:",
        _runs(runs),
    ]


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


def _runs(runs: Mapping[str, Any]) -> str:
    heads = [
        "seed", "held out, before", "after", "expected", "less full precision's",
        "reward, four quarters", "gradient norm", "mismatch KL", "largest",
    ]  # fmt: skip
    full = next(iter(runs.values()))
    rows = [
        [
            name,
            str(run["seed"]),
            f"{run['before']:.1%}",
            f"{run['after']:.1%} ± {1.96 * run['stderr']:.1%}",
            f"{run['expected']:.1%}",
            f"{100 * (run['expected'] - wide['expected']):+.1f} points" if run is not wide else "",
            ", ".join(f"{reward:.3f}" for reward in run["reward"]),
            f"{run['gradient_norm']:.2f}",
            f"{run['kl']:.2g}",
            f"{run['max']:.2g}",
        ]
        for name, of_seeds in runs.items()
        for run, wide in zip(of_seeds, full, strict=True)
    ]
    return table(heads, rows)


def _measured(values: Sequence[float]) -> str:
    return figure(median(values), (min(values), max(values)))
