"""Numbers and texts for people, the same on the terminal and in the report."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from rljob_runtime.record.event_types import (
    AlarmEvent,
    BestEvent,
    Group,
    RecoveryEvent,
    ReplicasEvent,
    ResizeEvent,
    SetFigures,
    StragglerEvent,
)
from rljob_runtime.report.display.history import RunHistory, gain95, interval95
from rljob_runtime.report.display.totals import number

BARS = "▁▂▃▄▅▆▇"  # no full block, so that adjacent lines stay separate
ASCII_BARS = "_.-=+*#"


def duration(seconds: float) -> str:
    """Format a duration: `0:41`, `12:05`, `3:07:00`; `–` if it is unknown."""
    if not math.isfinite(seconds):
        return "–"
    total = round(max(seconds, 0.0))
    hours, remainder = divmod(total, 3600)
    minutes, secs = divmod(remainder, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def seconds_of(value: float) -> str:
    """Format a phase's seconds: `0.004 s`, `0.21 s`, `3.4 s`, `41 s`, `2:05`."""
    if not math.isfinite(value):
        return "–"
    if value >= 100:
        return duration(value)
    digits = 0 if value >= 10 else 1 if value >= 1 else 2 if value >= 0.01 else 3
    return f"{value:.{digits}f} s"


def figure(value: float) -> str:
    """Format a number in at most seven characters: `0.612`, `0.0031`, `12.3`, `4 800`, `3.1e-06`, `nan`."""
    if math.isnan(value):
        return "nan"
    size = abs(value)
    if size >= 1e6 or 0 < size < 0.001:
        return f"{value:.1e}"
    if size >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    digits = 4 if 0 < size < 0.01 else 3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:.{digits}f}"


def bytes_of(value: float) -> str:
    """Format bytes in three digits: `512 B`, `1.5 KiB`, `61 MiB`, `7.6 GiB`."""
    if math.isnan(value):
        return "nan"
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 1000 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{value:.3g} {unit}"


def percent(share: float, digits: int = 1) -> str:
    """Format a share 0–1: `58.2 %`."""
    return "nan" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def count(value: float) -> str:
    """Format a count: `12 300`; `nan` if there is none."""
    return "nan" if math.isnan(value) else f"{value:,.0f}".replace(",", " ")


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Draw a metric over time in `width` characters, from its smallest to its largest value.

    More values than characters are averaged; nan leaves a gap; a constant is drawn low.
    """
    bars = ASCII_BARS if ascii_only else BARS
    cells = _bins(values, max(width, 1))
    finite = [cell for cell in cells if math.isfinite(cell)]
    if not finite or width < 1:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    return "".join(
        " " if not math.isfinite(c) else bars[int((c - low) / span * 6.999)] if span else bars[0]
        for c in cells
    )


def _bins(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [i * len(values) // width for i in range(width + 1)]
    cells = []
    for start, end in itertools.pairwise(edges):
        finite = [v for v in values[start:end] if math.isfinite(v)]
        cells.append(sum(finite) / len(finite) if finite else math.nan)
    return cells


def one_line(text: str) -> str:
    """Put text on one line: line breaks and other control characters become visible marks or blanks."""
    shown = text.replace("\n", "⏎").replace("\t", " ")
    return "".join(c if c.isprintable() else "·" for c in shown)


def prompt_text(group: Group) -> str:
    """Put a prompt on one line, with the sizes of its pictures in place: `[picture 56 × 56]`."""
    text = group.prompt.strip()
    for picture in group.pictures or ():
        text = text.replace("<image>", f"[picture {picture.width} × {picture.height}]", 1)
    return one_line(text)


def accuracy_text(evaluation: SetFigures) -> str:
    """Format an accuracy with its 95 % interval: `73.0 % (69.1–76.9)`."""
    low, high = interval95(evaluation)
    return f"{percent(evaluation.accuracy)} ({100 * low:.1f}–{100 * high:.1f})"


def suite_rows(history: RunHistory) -> list[dict[str, Any]]:
    """Return a row for each suite of the last evaluation, beside the first evaluation that had it.

    Keys: name, prompts, k, texts of accuracy, gain and pass@k.
    """
    steps = sorted(history.evaluations)
    if not steps:
        return []
    rows = []
    for name, last in (history.evaluations[steps[-1]].suites or {}).items():
        results = ((history.evaluations[step].suites or {}).get(name) for step in steps)
        first = next(suite for suite in results if suite is not None)
        gain, low, high = gain95(first, last)
        k = last.k
        rows.append(
            {
                "name": name,
                "prompts": count(last.n),
                "measure": "Pass@1" if k == 1 else f"Avg@{k}",
                "first": accuracy_text(first),
                "last": accuracy_text(last),
                "gain": f"{100 * gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
                "passAtK": "" if k == 1 else f"Pass@{k} {percent(number(last.pass_at_k))}",
            }
        )
    return rows


def summary_rows(history: RunHistory) -> list[tuple[str, str]]:
    """Return the result of a run as label and text: accuracy, reward, speed, checkpoint."""
    rows = []
    change = history.accuracy_change()
    if change:
        gain, low, high = gain95(*change)
        rows += [
            (
                "held-out accuracy",
                f"{percent(change[0].accuracy)} → {percent(change[1].accuracy)}",
            ),
            (
                "gain",
                f"{100 * gain:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
                f" ({count(change[1].n)} held-out prompts)",
            ),
        ]
    elif history.evaluations:
        rows.append(("held-out accuracy", accuracy_text(list(history.evaluations.values())[-1])))
    rows += [
        (f"{row['name']}, {row['measure']}", f"{row['first']} → {row['last']}")
        for row in suite_rows(history)
    ]
    reward = history.reward_change()
    if reward:
        first, last, k = reward
        over = f"mean of the first and the last {k} steps" if k > 1 else "first and last step"
        rows.append(("reward", f"{figure(first)} → {figure(last)} ({over})"))
    if (speed := history.mean_speed()) is not None:
        rows.append(("speed", f"{count(speed)} tokens/s, mean of the steps"))
    if left_out := left_out_text(history):
        rows.append(("left out now", left_out))
    if history.finished and history.finished.checkpoint:
        rows.append(("checkpoint", history.finished.checkpoint))
    if history.best:
        rows.append(("best checkpoint", best_text(history.best[-1])))
    return rows


def headline(history: RunHistory) -> str:
    """Format the end of a run: `done: 140 of 140 steps in 1:12`, and likewise if it failed or was
    interrupted."""
    finished = history.finished.status if history.finished else ""
    status = "done" if finished == "succeeded" else finished
    if status not in ("done", "failed", "interrupted"):
        status = "ended"
    steps = f"{history.step} of {history.total_steps} steps"
    return f"{status}: {steps} in {duration(history.run_seconds)}"


def resize_text(event: ResizeEvent) -> str:
    """Format a resize: `rollout devices 1 → 2 after step 12, asked for 8.1 s before; training stood still for
    0.21 s`."""
    why = f"asked for {seconds_of(event.waited_seconds)} before"
    if event.lost:
        why = f"without {_devices(event.lost)} until there is a place again"
    return (
        f"rollout devices {event.from_} → {event.to} after step {event.step}, {why}; training stood "
        f"still for {seconds_of(event.stopped_seconds)}"
    )


RECOVERED_FROM = {
    "peers": ", with the state of its peers",
    "checkpoint": ", with the last checkpoint",
    "beginning": ", with the model of the beginning",
    "none": "",
}


def recovery_text(event: RecoveryEvent) -> str:
    """Format a recovery: `device 1 (node-a) died and was replaced in 6.2 s, with the state of its peers; on
    after step 12`."""
    names = [f"device {device}" for device in event.devices] + event.others
    hosts = f" ({', '.join(event.hosts)})" if event.hosts else ""
    source = RECOVERED_FROM.get(event.source, "")
    lost = "" if event.rolled_back_to is None else "; later steps are trained again"
    verb = "were" if len(names) > 1 else "was"
    took = seconds_of(event.seconds)
    follows = f" and {verb} replaced in {took}{source}"
    if event.left_out:
        follows = f"; training goes on without {_devices(event.left_out)}, after {took}"
    return (
        f"{', '.join(names)}{hosts} {f'{verb} slow' if event.slow else 'died'}{follows}; on after step "
        f"{event.step}{lost}"
    )


def replicas_text(event: ReplicasEvent) -> str:
    """Format the replicas: `1 of 2 replicas train after step 12, without device 1 (node-b)`."""
    text = f"{event.live} of {event.wanted} replicas train after step {event.step}"
    if not event.left_out:
        return text
    return f"{text}, without {_devices(event.left_out)} ({', '.join(event.hosts)})"


def _devices(numbers: Sequence[int]) -> str:
    """Format device numbers: `device 3`, `devices 3, 4`."""
    return f"device{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def straggler_text(event: StragglerEvent) -> str:
    """Format a straggler: `device 3 (node-b) is slow: generate takes 2.60 times its peers' time, in 5 steps
    up to step 12`."""
    several, names = len(event.devices) > 1, _devices(event.devices)
    where = f"{names} ({', '.join(event.hosts)})" if event.hosts else names
    verb = "are" if several else "is"
    if event.status == "replaced":
        return f"{where} {verb} new after step {event.step}, in place of slow ones"
    times = f"{event.state} takes {figure(event.factor)} times {'their' if several else 'its'} peers' time"
    speed = "slow" if event.status == "slow" else "slow no more"
    return f"{where} {verb} {speed}: {times}, in {event.steps} steps up to step {event.step}"


def best_text(event: BestEvent) -> str:
    """Format the best evaluation: `step 40, accuracy 0.712`."""
    return f"step {event.step}, {event.metric} {figure(event.value)}"


def alarm_text(event: AlarmEvent) -> str:
    """Format an alarm: `alarm entropyCollapse at step 12: entropy 0.002 …; rolled back to step 8`, or its
    end."""
    if event.state == "cleared":
        return f"alarm {event.alarm} is over at step {event.step}"
    back = event.rolled_back_to
    follows = "" if back is None else f"; rolled back to step {back}"
    return f"alarm {event.alarm} at step {event.step}: {one_line(event.message)}{follows}"


def left_out_text(history: RunHistory) -> str | None:
    """Format the prompts that a difficulty filter skips: `41 prompts: 30 all right, 11 all wrong`."""
    names = ("left_out", "all_right", "all_wrong")
    values = [metric_of(history, f"difficulty/{name}") for name in names]
    if None in values:
        return None
    left_out, right, wrong = (count(value or 0) for value in values)
    return f"{left_out} prompts: {right} all right, {wrong} all wrong"


def metric_of(history: RunHistory, name: str) -> float | None:
    """Return the latest value of a metric: None if the last step has none, nan if it was not finite."""
    last = history.last_step()
    return number(last.metrics[name]) if last and name in last.metrics else None
