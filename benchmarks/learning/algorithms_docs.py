"""What docs/benchmarks.md shows of `algorithms.py`: a table a task at equal tokens, and curves."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from benchmarks.support.pictures import Panel, panels_svg

PICTURE = "images/learning.svg"
PRETRAINED_PICTURE = "images/pretrained.svg"
POINTS = 24
Run = Mapping[str, Any]


def learning_parts(document: Mapping[str, Any]) -> list[str]:
    """The picture, then for each task what its algorithms reached with the same number of tokens."""
    parts = [f"![Held-out accuracy by generated tokens, mean and range over seeds]({PICTURE})"]
    for task, algorithms in document["runs"].items():
        budget = _budget(algorithms)
        seeds = len(next(iter(algorithms.values())))
        parts += [
            f"**{task}**, {budget:,} response tokens, {seeds} seeds; mean ± standard deviation over seeds:",
            _table(algorithms, budget),
        ]
    return parts


def pretrained_parts(document: Mapping[str, Any]) -> list[str]:
    """The picture, then for each model what every algorithm has changed on each set of held-out prompts."""
    parts = [f"![Held-out accuracy by generated tokens]({PRETRAINED_PICTURE})"]
    for task, algorithms in document["runs"].items():
        first = next(iter(algorithms.values()))[0]
        curve = "; ".join(
            f"{name} {', '.join(f'{100 * share:.1f}' for _, share in runs[0]['accuracy'])}"
            for name, runs in algorithms.items()
        )
        parts += [
            f"**{task}**: Avg@{first['k']} (Pass@1 as the mean of {first['k']} samples) of "
            f"{first['prompts']} prompts a set, {len(first['reward'])} steps, ± one standard error:",
            _sets_table(algorithms),
            f"Held out of the trained task, in percent, at each evaluation: {curve}.",
        ]
    return parts


def _sets_table(algorithms: Mapping[str, Sequence[Run]]) -> str:
    first = next(iter(algorithms.values()))[0]
    heads = ["", "before", *algorithms]
    lines = [heads, ["---"] * len(heads)]
    for name, start in first["sets"][0].items():
        after = [runs[0]["sets"][1][name] for runs in algorithms.values()]
        said = "trained task" if name == "own" else name
        counted = {int(n) for _, _, *ns in [start, *after] for n in ns} - {first["prompts"]}
        said += f" ({', '.join(map(str, sorted(counted)))} prompts)" if counted else ""
        lines.append(
            [said, *(f"{share:.1%} ± {error:.1%}" for share, error, *_ in [start, *after])]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def learning_picture(document: Mapping[str, Any]) -> str:
    """Accuracy on held-out prompts against tokens, a panel a task, as an SVG."""
    panels = []
    for task, algorithms in document["runs"].items():
        budget = _budget(algorithms)
        places = [budget * i / POINTS for i in range(POINTS + 1)]
        curves = {
            name: [[accuracy_at(run, tokens) for run in runs] for tokens in places]
            for name, runs in algorithms.items()
        }
        thousands = [tokens / 1000 for tokens in places]
        panels.append(
            Panel(
                title=task,
                across="response tokens, thousands",
                lines={
                    name: list(zip(thousands, map(mean, curve), strict=True))
                    for name, curve in curves.items()
                },
                bands={
                    name: [(x, min(y), max(y)) for x, y in zip(thousands, curve, strict=True)]
                    for name, curve in curves.items()
                },
                percent=True,
            )
        )
    return panels_svg(panels)


def accuracy_at(run: Run, tokens: float) -> float:
    """Between the evaluations around it, linearly."""
    points: Sequence[tuple[float, float]] = run["accuracy"]
    for (before, low), (after, high) in itertools.pairwise(points):
        if tokens <= after:
            return low + (high - low) * (tokens - before) / ((after - before) or 1)
    return points[-1][1]


def _budget(algorithms: Mapping[str, Sequence[Run]]) -> int:
    """Tokens that every run has generated."""
    return min(run["accuracy"][-1][0] for runs in algorithms.values() for run in runs)


def _table(algorithms: Mapping[str, Sequence[Run]], budget: int) -> str:
    heads = ["", "held out, before", "after", "each seed", "points gained", "steps for it"]
    lines = [heads, ["---"] * len(heads)]
    for name, runs in algorithms.items():
        before = [run["accuracy"][0][1] for run in runs]
        after = [accuracy_at(run, budget) for run in runs]
        steps = [len(run["reward"]) * budget / run["accuracy"][-1][0] for run in runs]
        gains = [100 * (new - old) for new, old in zip(after, before, strict=True)]
        lines.append(
            [
                name,
                f"{mean(before):.1%}",
                f"{mean(after):.1%} ± {_spread(after):.1%}",
                ", ".join(f"{value:.1%}" for value in after),
                f"{mean(gains):+.1f}",
                f"{mean(steps):.0f}",
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
