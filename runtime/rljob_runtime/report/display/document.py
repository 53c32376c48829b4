"""The data of the report as one JSON-able document. Pure; `report` writes it."""

import re
import time
from dataclasses import asdict
from typing import Any

from rljob_runtime.record.event_types import Group, ShownPicture
from rljob_runtime.record.events import plain
from rljob_runtime.report.display.alarms import alarm_rows
from rljob_runtime.report.display.busy import busy_workers
from rljob_runtime.report.display.chart_table import charts
from rljob_runtime.report.display.dock_rows import row_figures
from rljob_runtime.report.display.dock_tables import dock_tables
from rljob_runtime.report.display.figures import evenly_spaced, shown_steps
from rljob_runtime.report.display.history import PHASES, RunHistory, gain95, interval95
from rljob_runtime.report.display.in_flight_figures import in_flight_table
from rljob_runtime.report.display.reshard_figures import memory_figures
from rljob_runtime.report.display.reshard_table import over_bound, reshard_table
from rljob_runtime.report.display.totals import number, row_name
from rljob_runtime.report.display.wording import (
    best_text,
    bytes_of,
    count,
    duration,
    figure,
    left_out_text,
    one_line,
    percent,
    recovery_text,
    replicas_text,
    resize_text,
    seconds_of,
    straggler_text,
    suite_rows,
)

MAX_DETAILED_STEPS = 200
MAX_TEXT = 4000
MAX_NOTICES = 200
NO_BREAK = "\N{NO-BREAK SPACE}"
SHOWN_OPERATORS = 3
BASE64 = re.compile(r"[A-Za-z0-9+/]{1,16384}={0,2}")
"""Pattern of a picture's content, limited to the size that a log may contain."""
Document = dict[str, Any]


def document(history: RunHistory, spec: str) -> Document:
    """Build the JSON-able data of the page."""
    return {
        "name": history.name,
        "status": status(history),
        "started": started(history),
        "facts": facts(history),
        "result": result(history),
        "suites": suite_rows(history),
        "alarms": alarm_rows(history),
        "charts": charts(history),
        "phaseChart": next(iter(charts(history, "phaseChart")), None),
        "timeline": timeline(history),
        "busy": busy(history),
        "samples": samples(history),
        "dock": dock_tables(history),
        "dockCharts": charts(history, "dockCharts"),
        "dockRows": row_figures(history),
        "reshard": reshard_table(history),
        "reshardOverBound": over_bound(history),
        "reshardCharts": charts(history, "reshardCharts"),
        "reshardMemory": memory_figures(history),
        "inFlight": in_flight_table(history),
        "notices": notices(history),
        "best": best_text(history.best[-1]) if history.best else None,
        "checkpoints": [plain(history.checkpoints[step]) for step in sorted(history.checkpoints)],
        "profiles": profiles(history),
        "machine": history.started.machine,
        "versions": history.started.versions,
        "resumedFrom": history.resumed_from,
        "next": history.hints,
        "spec": spec,
    }


def status(history: RunHistory) -> Document:
    """Return how the run ended, or its progress. doing: current set-up work; left: time to the last step."""
    finished, eta = history.finished, history.eta_seconds()
    goes_on = finished is None
    progress = history.progress if goes_on and not history.step else None
    return {
        "doing": one_line(progress.message) if progress else "",
        "left": duration(eta) if goes_on and eta else "",
        "kind": finished.status if finished else "running",
        "message": finished.message if finished else "",
        "step": history.step,
        "total": history.total_steps,
    }


def facts(history: RunHistory) -> list[tuple[str, str]]:
    """Return the label and text of each fact in the line under the job's name."""
    started = history.started
    devices, batch, group = started.devices, started.global_batch_size, started.samples_per_prompt
    known = [
        ("model", started.model),
        ("data", started.dataset),
        ("algorithm", started.algorithm),
        ("devices", f"{devices} {started.placement or ''}".strip() if devices else None),
        ("rollout", started.rollout_engine),
        ("batch", f"{batch} prompts × {group} samples" if batch and group else None),
        ("seed", started.seed),
        ("left out now", left_out_text(history)),
    ]
    return [(label, str(value)) for label, value in known if value is not None]


def started(history: RunHistory) -> str:
    """Format the start of the run in this machine's time zone."""
    if history.first_time is None:
        return ""
    return time.strftime("%d %B %Y, %H:%M", time.localtime(history.first_time)).lstrip("0")


def result(history: RunHistory) -> Document:
    """Return the headline numbers: accuracy before and after, reward, steps and time, speed."""
    change, reward = history.accuracy_change(), history.reward_change()
    speed = history.mean_speed()
    shown: Document = {
        "steps": " / ".join(
            count(steps).replace(" ", NO_BREAK) for steps in (history.step, history.total_steps)
        ),
        "time": duration(history.run_seconds),
        "speed": count(speed) if speed is not None else None,
    }
    if change:
        gain, low, high = gain95(*change)
        shown["gain"] = f"{100 * gain:+.1f} points"
        shown["gainInterval"] = f"95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
        shown["gainSign"] = "up" if low > 0 else "down" if high < 0 else "open"
    if history.evaluations:
        ends = change or (history.evaluations[max(history.evaluations)],)
        shown["accuracy"] = [
            {
                "share": event.accuracy,
                "interval": interval95(event),
                "text": percent(event.accuracy),
                "step": event.step,
                "prompts": count(event.n),
            }
            for event in ends
        ]
    if reward:
        shown["reward"] = {"before": figure(reward[0]), "after": figure(reward[1]), "k": reward[2]}
    elif rewards := history.series("reward/mean"):
        shown["reward"] = {"after": figure(rewards[-1])}
    return shown


def timeline(history: RunHistory) -> list[Document]:
    """Return when each phase ran on each worker, in seconds from the step's start."""
    shown = []
    for step in shown_steps(history, MAX_DETAILED_STEPS):
        event = history.steps[step]
        start = event.time - event.seconds
        rows: dict[str, list[tuple[str, float, float]]] = {}
        for phase in history.phases.get(step, []):
            if phase.end > start and not phase.evaluation:
                span = (phase.name, max(phase.start - start, 0.0), phase.end - start)
                rows.setdefault(row_name(phase), []).append(span)
        if rows:
            seconds = max(event.seconds, *(end for spans in rows.values() for *_, end in spans))
            order = sorted(rows, key=lambda row: (_first_phase(rows[row]), row))
            shown_rows = [{"row": row, "spans": rows[row]} for row in order]
            shown.append({"step": step, "seconds": seconds, "rows": shown_rows})
    return shown


def busy(history: RunHistory) -> list[Document]:
    """Return how busy each worker was, from the first step after the run's last start to its last step."""
    interval = history.last_attempt_interval()
    if interval is None:
        return []
    return [
        asdict(worker) for worker in busy_workers(history, since=interval[0], until=interval[1])
    ]


def _first_phase(spans: list[tuple[str, float, float]]) -> int:
    places = [PHASES.index(name) if name in PHASES else len(PHASES) for name, *_ in spans]
    return min(places)


def samples(history: RunHistory) -> list[Document]:
    """Return groups of samples by step, best reward first; long texts are cut with a note."""
    steps = [step for step in sorted(history.steps) if history.steps[step].samples]
    return [
        {"step": step, "groups": [_group(group) for group in history.steps[step].samples]}
        for step in evenly_spaced(steps, MAX_DETAILED_STEPS)
    ]


def _group(group: Group) -> Document:
    responses = [
        {
            "text": _cut(response.text),
            "reward": response.reward,
            "parts": response.parts,
            "length": response.length,
            "tokens": plain(response.tokens),
        }
        for response in group.responses
    ]
    ranked = sorted(responses, key=lambda r: -_rank(r["reward"]))
    return {
        "prompt": _cut(group.prompt),
        "pictures": [_picture(picture) for picture in group.pictures or ()],
        "answer": None if group.answer is None else _cut(group.answer),
        "responses": ranked,
    }


def _picture(picture: ShownPicture) -> Document:
    """Return the picture's size and, if it is shown, its data URL. It never refers to another source."""
    content = picture.content or ""
    known = picture.format is not None and BASE64.fullmatch(content) is not None
    address = f"data:image/{picture.format};base64,{content}" if known else None
    width, height = max(1, picture.width), max(1, picture.height)
    return {"width": width, "height": height, "address": address}


def _rank(reward: object) -> float:
    value = number(reward)
    return value if value == value else float("-inf")


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}… ({count(len(text) - MAX_TEXT)} more characters)"


def profiles(history: RunHistory) -> list[Document]:
    """Return the traces with their longest operators; of several with one name, the last."""
    last = {event.path: event for event in history.profiles}
    return [
        {
            "path": path,
            "step": event.step,
            "what": f"{event.state} on device {event.rank}",
            "seconds": seconds_of(event.seconds),
            "bytes": bytes_of(event.bytes),
            "operators": ", ".join(
                f"{o.name} {seconds_of(o.self_seconds)}" for o in event.operators[:SHOWN_OPERATORS]
            ),
        }
        for path, event in last.items()
    ]


def notices(history: RunHistory) -> list[Document]:
    """Return the latest warnings, failed rewards, deaths, stragglers and changes of the devices."""
    shown = [
        {"step": event.step, "kind": event.kind, "text": event.message, "count": 1}
        for event in history.warnings
    ]
    shown += [
        {"step": event.step, "kind": "resize", "text": resize_text(event), "count": 1}
        for event in history.resizes
    ]
    shown += [
        {"step": event.step, "kind": "recovery", "text": recovery_text(event), "count": 1}
        for event in history.recoveries
    ]
    shown += [
        {"step": event.step, "kind": "replicas", "text": replicas_text(event), "count": 1}
        for event in history.replicas
        if event.step or event.left_out  # no notice if all replicas train from the start
    ]
    shown += [
        {"step": event.step, "kind": "straggler", "text": straggler_text(event), "count": 1}
        for event in history.stragglers
    ]
    shown += [
        {
            "step": event.step,
            "kind": f"reward {event.reward}",
            "text": event.message,
            "count": event.count,
        }
        for event in history.reward_errors
    ]
    return sorted(shown, key=lambda notice: notice["step"] or 0)[-MAX_NOTICES:]
