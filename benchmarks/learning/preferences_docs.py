"""What docs/benchmarks.md shows of `preferences.py`: a table a subject, and held-out curves."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.support.pictures import Panel, Point, panels_svg
from benchmarks.support.tables import table

PICTURE = "images/preferences.svg"
Run = Mapping[str, Any]


def preferences_parts(document: Mapping[str, Any]) -> list[str]:
    """The picture, then for each subject what its runs learned."""
    runs, parts = document["runs"], list[str]()
    for subject, of_subject in runs.items():
        words, rows = TABLES[subject]
        parts += [words, rows(of_subject)]
    prompts = next(iter(runs.values()))[0]["prompts"]
    return [
        f"{document['steps']} steps each; accuracy and win rate are of one response to each of {prompts} "
        "held-out words, with intervals of 95 % over words.",
        f"![Held-out accuracy by step, mean and range over seeds]({PICTURE})",
        *parts,
    ]


def preferences_picture(document: Mapping[str, Any]) -> str:
    """Held-out shares by step, a panel a subject, as an SVG."""
    return panels_svg([_panel(name, runs) for name, runs in document["runs"].items()])


def _panel(subject: str, runs: Sequence[Run]) -> Panel:
    steps = [step for step, *_ in runs[0]["accuracy"]]
    shares = {"held-out accuracy": [[share for _, share, _ in run["accuracy"]] for run in runs]}
    if "wins" in runs[0]:
        shares["win rate against the start"] = [[share for share, _ in run["wins"]] for run in runs]
    if "teacher" in runs[0]:
        shares["the teacher's accuracy"] = [[run["teacher"]] * len(steps) for run in runs]
    return Panel(
        title=TITLES[subject],
        across="step",
        lines={name: _over_seeds(steps, of_runs, mean) for name, of_runs in shares.items()},
        bands={
            name: [(step, min(at), max(at)) for step, *at in zip(steps, *of_runs, strict=True)]
            for name, of_runs in shares.items()
        },
        percent=True,
    )


def _over_seeds(
    steps: Sequence[int], of_runs: Sequence[Sequence[float]], figure: Callable[[list[float]], float]
) -> list[Point]:
    return [(step, figure(list(at))) for step, *at in zip(steps, *of_runs, strict=True)]


def _pairs(runs: Sequence[Run]) -> str:
    heads = ["margin, four quarters", *ACCURACY, "win rate, before", "half way", "after"]
    rows = []
    for run in runs:
        first, half, last = (run["wins"][place] for place in (0, len(run["wins"]) // 2, -1))
        rows.append([*_held_out(run, _row(run["margin"])), *map(_share, (first, half, last))])
    if len(runs) > 1:
        ends = [[run["accuracy"][place][1:] for run in runs] for place in (0, -1)]
        wins = [[run["wins"][p] for run in runs] for p in (0, len(runs[0]["wins"]) // 2, -1)]
        rows.append(["all seeds", "", *(_share(_pooled(found)) for found in (*ends, *wins))])
    return table(heads, rows)


def _scored(runs: Sequence[Run]) -> str:
    heads = [
        "pairs told apart", "score, four quarters", "score held out, before", "after",
        "truly right, before", "after",
    ]  # fmt: skip
    rows = []
    for run in runs:
        seed, scores, *accuracy = _held_out(run, _row(run["score"]))
        held = [f"{run['held_out_reward'][place]:.2f}" for place in (0, -1)]
        rows.append([seed, f"{run['told_apart']:.1%}", scores, *held, *accuracy])
    return table(heads, rows)


def _taught(runs: Sequence[Run]) -> str:
    heads = ["teacher/kl, nats, four quarters", *ACCURACY, "the teacher's"]
    return table(
        heads, [[*_held_out(run, _row(run["kl"])), f"{run['teacher']:.1%}"] for run in runs]
    )


def _held_out(run: Run, figures: str) -> list[str]:
    first, last = (run["accuracy"][place][1:] for place in (0, -1))
    return [f"seed {run['seed']}", figures, *map(_share, (first, last))]


def _share(found: Sequence[float]) -> str:
    share, stderr = found
    return f"{share:.1%} ± {1.96 * stderr:.1%}"


def _pooled(shares: Sequence[Sequence[float]]) -> list[float]:
    """Share and standard error of as many words of each run."""
    return [mean(s for s, _ in shares), sum(e * e for _, e in shares) ** 0.5 / len(shares)]


def _row(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


ACCURACY = ("held out, before", "after")
TITLES = {
    "pairs": "DPO on pairs of rollouts",
    "reward model": "GRPO by a reward model",
    "teacher": "on-policy distillation",
}
TABLES = {
    "pairs": (
        "**DPO on pairs of rollouts**: of eight responses to a word, the one with the most letters in their "
        "place is preferred to the one with the fewest. *margin*: β·h of the step's pairs; below 0, since a "
        "wrong response that the policy draws is often one that it likes better than its reference does. "
        "*win rate*: share of held-out words where the policy's response has the higher reward than one of "
        "the policy that it began with, ties half:",
        _pairs,
    ),
    "reward model": (
        "**GRPO by a reward model**, on words of up to five letters: a classifier was trained beforehand, by "
        "transformers, to tell right responses from edited ones and from the policy's own wrong ones. Its "
        "score is the only reward; a KL term (0.1) keeps the policy near the one whose responses the "
        "classifier has seen. True accuracy is measured, and teaches nothing:",
        _scored,
    ),
    "teacher": (
        "**On-policy distillation**: the student was warmed up for less than its teacher, and sees nothing "
        "but the teacher's log-probs of what it draws:",
        _taught,
    ),
}
