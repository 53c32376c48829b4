"""The table of the report's charts, in reading order. A new chart is a new row.

Functions above the table provide figures that are not metrics of the steps, and the curves of charts whose
curves depend on the run.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rljob_runtime.record.event_types import DockEvent, InFlightEvent, ReshardEvent
from rljob_runtime.report.display.figures import (
    Chart,
    Curve,
    Figure,
    StepValues,
    draw,
    shares,
    shown_steps,
    stacked_bars,
    step_metrics,
)
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.reshard_figures import PHASES, standstill_share
from rljob_runtime.report.display.totals import number

OF_ALL_REWARDS = ("reward/mean", "reward/std", "reward/errors", "reward/error_share")
"""Metrics of all rewards together."""
MOST_DEVICES = 16
"""Largest number of devices in the memory chart."""
MAX_LINES = 16
"""Largest number of lines in a chart of the dock."""
SERIES = ("@generate", "@update", "@reference", "@reward-phase", "@bad")
DASHES = ("solid", "dot", "dash", "dashdot")
"""Dash styles of lines whose colour is repeated."""


def charts(history: RunHistory, section: str = "charts") -> list[Figure]:
    """Return all charts of a section that the run has data for."""
    drawn = (draw(chart, history) for chart in CHARTS if chart.section == section)
    return [chart for chart in drawn if chart is not None]


def _reward_curves(step_values: StepValues) -> list[Curve]:
    """Return a curve per reward, if there are several."""
    names = reward_names(step_values)
    return (
        _with_colours((name, name.removeprefix("reward/")) for name in names) if names[1:] else []
    )


def reward_names(step_values: StepValues) -> list[str]:
    """Return the metrics of single rewards in the last step."""
    return [n for n in _last(step_values) if n.startswith("reward/") and n not in OF_ALL_REWARDS]


def _device_curves(step_values: StepValues) -> list[Curve]:
    """Return a curve per device; of many devices, those with the largest peaks in the last step."""
    peaks, names = _last(step_values), _devices(step_values)
    fullest = sorted(names, key=lambda name: -(peaks[name] or 0))[:MOST_DEVICES]
    shown = ((n, f"device {n.rsplit('/', 1)[1]}") for n in names if n in fullest)
    return _with_colours(shown, smooth=False)


def _devices(step_values: StepValues) -> list[str]:
    return [name for name in _last(step_values) if name.startswith("memory/peak_bytes/")]


def _left_out_note(history: RunHistory) -> str:
    num_devices = len(_devices(step_metrics(history)))
    note = f" The {MOST_DEVICES} of {num_devices} devices that held most in the last step."
    return note if num_devices > MOST_DEVICES else ""


def _last(step_values: StepValues) -> Mapping[str, Any]:
    return step_values[max(step_values)] if step_values else {}


def _with_colours(names: Iterable[tuple[str, str]], *, smooth: bool = True) -> list[Curve]:
    """Return a curve per (figure, name), with colours that repeat."""
    return [
        Curve(metric, name, SERIES[i % len(SERIES)], smooth=smooth)
        for i, (metric, name) in enumerate(names)
    ]


def _phases(history: RunHistory) -> StepValues:
    return {step: history.phase_seconds(step) for step in shown_steps(history, 400)}


def _phase_curves(step_values: StepValues) -> list[Curve]:
    return [
        Curve(name, name, "@reward-phase" if name == "reward" else f"@{name}", text=".3f")
        for name in _names(step_values)
    ]


def _dock_curves(step_values: StepValues, text: str = ".3~g") -> list[Curve]:
    return [
        Curve(name, name, SERIES[i % len(SERIES)], text=text, dash=DASHES[i // len(SERIES)])
        for i, name in enumerate(_names(step_values)[:MAX_LINES])
    ]


def _dock_bytes(step_values: StepValues) -> list[Curve]:
    return _dock_curves(step_values, ".3~s")


def _docks(history: RunHistory) -> Iterator[tuple[int, DockEvent]]:
    return ((step, history.docks[step]) for step in shown_steps(history) if step in history.docks)


def _waits(history: RunHistory) -> StepValues:
    waits = {
        step: {
            f"{state} for {awaited}": seconds
            for state, values in dock.states.items()
            for awaited, seconds in values.waits.items()
        }
        for step, dock in _docks(history)
    }
    return _even(waits, 0.0)


def _rates(history: RunHistory) -> StepValues:
    rates = {
        step: {
            f"{edge.from_} → {edge.to}": edge.bytes / history.steps[step].seconds
            for edge in dock.edges
        }
        for step, dock in _docks(history)
    }
    return _even(rates, 0.0)


def _warehouse_peaks(history: RunHistory) -> StepValues:
    peaks = {
        step: {f"warehouse {w.index}": w.peak_bytes for w in dock.warehouses}
        for step, dock in _docks(history)
    }
    return _even(peaks)


def _reshards(history: RunHistory) -> StepValues:
    fields = ("seconds", *PHASES, "overlap", "peak_bytes", "bound_bytes")
    step_values = _fields(history.reshards, fields)
    for step, figures in step_values.items():
        figures["share"] = standstill_share(history.reshards[step], history.seconds(step))
    return _even(step_values)


def _in_flight(history: RunHistory) -> StepValues:
    fields = ("received_seconds", "hidden_seconds", "switch_seconds")
    return _even(_fields(history.in_flight, fields))


def _fields(
    events: Mapping[int, ReshardEvent] | Mapping[int, InFlightEvent], names: Iterable[str]
) -> dict[int, dict[str, Any]]:
    return {step: {name: getattr(event, name) for name in names} for step, event in events.items()}


def _even(step_values: StepValues, absent: float | None = None) -> StepValues:
    """Give every step the same figures: all that any step has as a number. absent: value for the other
    steps."""
    names = _names(
        {s: {n: v for n, v in t.items() if number(v) == number(v)} for s, t in step_values.items()}
    )
    return {
        step: {name: figures.get(name, absent) for name in names}
        for step, figures in step_values.items()
    }


def _names(step_values: StepValues) -> list[str]:
    """Return all names that occur in any step, in the order of the steps."""
    return list(dict.fromkeys(name for step in sorted(step_values) for name in step_values[step]))


def _row_ages(chart: Chart, history: RunHistory) -> Figure | None:
    """Draw bars over ages instead of steps."""
    ages = history.step_totals().staleness
    if not ages:
        return None
    shown = range(max(ages) + 1)
    bar = {
        "type": "bar",
        "x": [*shown],
        "y": [ages[age] for age in shown],
        "width": 0.6,
        "marker": {"color": "@generate"},
        "hovertemplate": "%{y:,} rows",
    }
    axis = {"range": [-0.7, max(ages) + 0.7], "dtick": max(1, len(shown) // 8)}
    return {"data": [bar], "layout": {"showlegend": False, "xaxis": axis, "yaxis": {}}}


CHARTS: tuple[Chart, ...] = (
    Chart("reward", "Reward",
          "Mean over the step's samples; the band is one standard deviation between samples.",
          [Curve("reward/mean", "mean reward", "@reward", band="reward/std")], wide=True),
    Chart("accuracy", "Accuracy", "Share of samples that pass; held-out prompts with 95 % intervals.",
          [Curve("pass_rate", "training samples", "@muted", text=".1%")], form=shares, wide=True),
    Chart("length", "Response length",
          "Mean tokens of a response, and the share that was cut at the limit.",
          [Curve("response_length/mean", "tokens", "@generate"),
           Curve("response_length/clipped_share", "cut at the limit", "@bad", axis="y2", text=".1%")]),
    Chart("turns", "Turns and waiting for tools",
          "Mean turns of a sample, and seconds of a step in which a device did nothing but wait for answers.",
          [Curve("turns/mean", "turns", "@generate"),
           Curve("tools/idle_seconds", "seconds idle", "@bad", axis="y2"),
           Curve("environment/idle_seconds", "seconds idle", "@bad", axis="y2"),
           Curve("agent/idle_seconds", "seconds idle", "@bad", axis="y2")]),
    Chart("entropy", "Entropy",
          "Mean entropy of the policy at a response token, in nats; near 0 it explores no more.",
          [Curve("entropy", "entropy", "@reference")]),
    Chart("kl", "KL and clipping",
          "Distance to the reference model, and the share of tokens where the ratio was clipped.",
          [Curve("kl", "KL", "@update"),
           Curve("clip_fraction", "clipped", "@reward-phase", axis="y2", text=".1%")]),
    Chart("signal", "Groups with signal",
          "Share of groups whose rewards differ; the others teach nothing.",
          [Curve("groups/with_signal", "groups", "@accuracy", text=".1%")]),
    Chart("difficulty", "Prompts left out",
          "Training prompts that the difficulty filter leaves out now: all samples were right, or all wrong.",
          [Curve("difficulty/all_right", "all right", "@accuracy", smooth=False),
           Curve("difficulty/all_wrong", "all wrong", "@bad", smooth=False)]),
    Chart("mismatch", "Mismatch of rollout and update",
          "How far the log-probs of the two engines lie apart for the same tokens.",
          [Curve("mismatch/kl", "KL", "@generate"),
           Curve("mismatch/max", "largest", "@muted", axis="y2")]),
    Chart("staleness", "Staleness",
          "How many weight versions a step's samples (by their first tokens) are behind the weights that "
          "they train; with a partial rollout also of all tokens.",
          [Curve("staleness", "mean", "@generate"),
           Curve("staleness/tokens", "mean of tokens", "@update"),
           Curve("staleness/max", "oldest", "@muted", smooth=False)]),
    Chart("gradient", "Gradient norm and learning rate", "Norm of the whole gradient before clipping.",
          [Curve("gradient_norm", "norm", "@update"),
           Curve("learning_rate", "learning rate", "@muted", axis="y2", smooth=False)]),
    Chart("speed", "Tokens per second", "Prompt and response tokens of a step over its seconds.",
          [Curve("tokens_per_second", "all tokens", "@generate"),
           Curve("response_tokens_per_second", "response tokens", "@muted"),
           Curve("picture_tokens_per_second", "pictures' tokens", "@update")]),
    Chart("reward-parts", "Rewards one by one", "Mean score of each reward, before its weight.",
          curves_of=_reward_curves),
    Chart("memory", "Device memory", "Largest number of bytes that a device held within the step.",
          curves_of=_device_curves, note_end=_left_out_note, unit="B"),
    Chart("phases", "Phases",
          "Seconds of each phase, the slowest worker's; phases that overlap add up to more than the step.",
          curves_of=_phase_curves, values=_phases, section="phaseChart", unit=" s", form=stacked_bars,
          wide=True),
    Chart("dock-waits", "Who waits for whom",
          "Seconds that workers of a state waited in a step for rows of another, added up.",
          curves_of=_dock_curves, values=_waits, section="dockCharts", unit=" s", from_zero=True, wide=True),
    Chart("dock-edges", "Bytes a second from state to state",
          "Bytes of columns that a state read of another's, over the step's seconds.",
          curves_of=_dock_bytes, values=_rates, section="dockCharts", unit="B", from_zero=True, wide=True),
    Chart("dock-held", "Held", "Bytes in each warehouse at its fullest moment of a step.",
          curves_of=_dock_bytes, values=_warehouse_peaks, section="dockCharts", unit="B", from_zero=True,
          wide=True),
    Chart("dock-staleness", "Staleness of rows",
          "Rows of the run by how many weight versions they were behind the weights they trained.",
          section="dockCharts", form=_row_ages, wide=True),
    Chart("reshard-seconds", "Seconds of a reshard",
          "Of the slowest device. Gather, select and swap overlap; the way back runs beside what follows.",
          [Curve("seconds", "reshard", "@text", smooth=False),
           *(Curve(field, *style, smooth=False) for field, style in PHASES.items())],
          values=_reshards, section="reshardCharts", unit=" s", from_zero=True),
    Chart("reshard-share", "Share and overlap",
          "Share of a step in which devices only reshard, and of the way back that other work hides.",
          [Curve("share", "of the step", "@update", text=".1%"),
           Curve("overlap", "way back, hidden", "@muted", text=".1%")],
          values=_reshards, section="reshardCharts", from_zero=True),
    Chart("reshard-bytes", "Peak of a device",
          "Weights and buffers of the fullest device while it reshards, and what they may be.",
          [Curve("peak_bytes", "peak", "@generate", smooth=False),
           Curve("bound_bytes", "bound", "@bad", smooth=False)],
          values=_reshards, section="reshardCharts", unit="B", from_zero=True),
    Chart("in-flight-seconds", "Seconds of weights in flight",
          "Of the slowest device: from the first byte to the verified last, and the copy from the host.",
          [Curve("received_seconds", "on the way", "@generate", smooth=False),
           Curve("hidden_seconds", "behind generation", "@update", smooth=False),
           Curve("switch_seconds", "generation stands still", "@bad", smooth=False)],
          values=_in_flight, section="reshardCharts", unit=" s", from_zero=True),
)  # fmt: skip
