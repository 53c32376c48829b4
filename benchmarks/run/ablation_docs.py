"""What docs/benchmarks.md shows of `ablation.py`: throughput and memory by form, and curves."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.support.pictures import Panel, panels_svg
from benchmarks.support.results import figure

PICTURE = "images/ablation.svg"
MIB = 2**20
Run = Mapping[str, Any]


def ablation_parts(document: Mapping[str, Any]) -> list[str]:
    """The picture, a table of speed, one of memory, and in what the runs differ."""
    runs = document["runs"]
    return [
        f"![Throughput, median and range over the turns, and mean reward over the steps]({PICTURE})",
        _speed(runs),
        "Memory by the runs' own events, the largest over the steps, MiB; a device has "
        f"{document['memory']}B:",
        _memory(runs),
        _differences(document["differences"], document["steps"]),
    ]


def _speed(runs: Mapping[str, Sequence[Run]]) -> str:
    heads = [
        "",
        "tokens/s a device (Eq. 5)",
        "of *both*, paired",
        "a step, s",
        "generation, s",
        "dock, ms",
        "reshard, ms",
    ]
    both = next(iter(runs.values()))
    rows = []
    for form, of_form in runs.items():
        ratios = [
            run["throughput"] / beside["throughput"]
            for run, beside in zip(of_form, both, strict=True)
        ]
        rows.append(
            [
                form,
                _figure([run["throughput"] for run in of_form]),
                "" if of_form is both else f"**{_figure(ratios)}×**",
                _figure([run["step_seconds"] for run in of_form]),
                _figure([run["generate_seconds"] for run in of_form]),
                _figure([1000 * run["dock_seconds"] for run in of_form]),
                _figure([1000 * run["reshard_seconds"] for run in of_form]),
            ]
        )
    return _table(heads, rows)


def _memory(runs: Mapping[str, Sequence[Run]]) -> str:
    heads = [
        "",
        "peak of a device in a reshard",
        "update weights that stay while generating, all devices",
        "on hosts",
        "KV cache of a device",
    ]
    names = ("peak_bytes", "kept_bytes", "host_bytes", "cache_bytes")
    rows = [
        [form, *(f"{max(run[name] for run in of_form) / MIB:.2f}" for name in names)]
        for form, of_form in runs.items()
    ]
    return _table(heads, rows)


def _differences(found: Mapping[str, Any], steps: int) -> str:
    told = (
        f"Largest distance of the reward curves over all {steps} steps of all {found['runs']} runs: "
        f"{found['reward']:.3g}."
    )
    weights = "the same in every bit" if found["same_weights"] else "not the same bits"
    if not found["apart"]:
        same = f"All {found['metrics']} metrics without a clock are equal in every step"
        return f"{told} {same}, and the trained weights are {weights}."
    apart = ", ".join(f"`{name}` ({distance:.2g})" for name, distance in found["apart"].items())
    differ = f"Of {found['metrics']} metrics without a clock these differ, at most by: {apart}."
    return f"{told} {differ} The trained weights are {weights}."


def ablation_picture(document: Mapping[str, Any]) -> str:
    """The paper's Fig. 7 and 8: throughput and mean reward over the steps, a line a form."""
    across, bands = {}, {}
    for form, of_form in document["runs"].items():
        by_step = list(zip(*(run["tokens_per_second"] for run in of_form), strict=True))
        across[form] = [(step, median(values)) for step, values in enumerate(by_step, 1)]
        bands[form] = [(step, min(values), max(values)) for step, values in enumerate(by_step, 1)]
    rewards = {
        form: list(enumerate(of_form[0]["rewards"], 1))
        for form, of_form in document["runs"].items()
    }
    speed = "Tokens/s a device (Eq. 5)"
    return panels_svg(
        [
            Panel(title=speed, across="step", lines=across, bands=bands, from_zero=True),
            Panel(title="Mean reward", across="step", lines=rewards),
        ]
    )


def _figure(values: Sequence[float]) -> str:
    return figure(median(values), (min(values), max(values)))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
