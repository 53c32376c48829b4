"""`rljob status NAME`: one job on one page. Pure functions of what was asked of the cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_runtime.cli.cluster.job_facts import (
    ROLES,
    Manifest,
    age,
    is_ready,
    phase,
    restarts,
    role,
    seconds_since,
    state,
)
from rljob_runtime.cli.cluster.job_table import PHASE_STYLES, UNKNOWN, plain_table, shown
from rljob_runtime.report.display.wording import count, duration, figure, one_line

WIDTH = 100
SHOWN_EVENTS = 8
SHOWN_PODS = 12
"""Pods of one role; of more, those that are ready are counted instead."""
GOOD = {"True": "green", "False": "yellow"}
BAD_WHEN_TRUE = ("Failed", "Stopping", "Suspended", "FewerReplicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was asked of the cluster. notes: what could not be asked, and why."""

    job: Manifest
    pods: Sequence[Manifest] = ()
    events: Sequence[Manifest] = ()
    notes: Sequence[str] = field(default=())


def page(seen: Seen, *, now: float, width: int = WIDTH) -> RenderableType:
    """The whole page. now: unix seconds."""
    width = min(width, WIDTH)
    blocks = [
        _header(seen.job, now, width),
        _progress(seen.job, width),
        _numbers(seen.job, now),
        *_titled("conditions", _conditions(seen.job, now)),
        *_titled("failures", _failures(seen.job, now)),
        *_titled("pods", _pods(seen.pods, now)),
        *_titled("events", _events(seen.events, now)),
    ]
    return Group(*blocks, *(Text(f"note: {one_line(note)}", style="yellow") for note in seen.notes))


def status_line(job: Manifest) -> str:
    """The job in one line, for output that is no terminal."""
    status = job.get("status", {})
    progress = status.get("progress", {})
    parts = [phase(job)]
    if progress:
        parts.append(f"step {progress['step']}/{progress['totalSteps']}")
    for label, key, text_of in (
        ("reward", "reward", figure),
        ("tokens/s", "tokensPerSecond", count),
        ("eta", "etaSeconds", duration),
    ):
        if progress.get(key) is not None:
            parts.append(f"{label} {text_of(progress[key])}")
    if status.get("devices"):
        parts.append(f"devices {status['devices']}")
    if status.get("spareNodes"):
        parts.append(f"spare nodes {status['spareNodes']}")
    return "  ".join([*parts, f"restarts {status.get('restarts', 0)}"])


def _header(job: Manifest, now: float, width: int) -> RenderableType:
    metadata, status, word = job["metadata"], job.get("status", {}), phase(job)
    text = Text(metadata["name"], style="bold").append(
        f"  {metadata['namespace']}", style="not bold dim"
    )
    since = status.get("startTime") or metadata["creationTimestamp"]
    spent = seconds_since(since, now) - max(0.0, _since_end(status, now))
    right = Text(word, style=PHASE_STYLES.get(word, "bold")).append(
        f"  {duration(spent)}", style="dim"
    )
    row = Table.grid(expand=True)
    row.width = width
    row.add_column(no_wrap=True)
    row.add_column(no_wrap=True, justify="right")
    row.add_row(text, right)
    return row


def _since_end(status: Manifest, now: float) -> float:
    end = status.get("completionTime")
    return seconds_since(end, now) if end else 0.0


def _progress(job: Manifest, width: int) -> RenderableType:
    progress = job.get("status", {}).get("progress")
    if not progress:
        return Text("no step has ended yet", style="dim")
    eta = progress.get("etaSeconds")
    label = f"  step {progress['step']}/{progress['totalSteps']}"
    label += f"  {duration(eta)} left" if eta else ""
    cells = max(10, width - len(label))
    filled = round(cells * progress["step"] / max(1, progress["totalSteps"]))
    return (
        Text("━" * filled, style="cyan")
        .append("─" * (cells - filled), style="dim")
        .append(label, style="default")
    )


def _numbers(job: Manifest, now: float) -> RenderableType:
    status = job.get("status", {})
    progress, saved = status.get("progress", {}), status.get("lastCheckpoint")
    facts = [
        ("reward", shown(progress.get("reward"), figure)),
        ("tokens/s", shown(progress.get("tokensPerSecond"), count)),
        ("devices", status.get("devices", UNKNOWN)),
        *([("spare nodes", status["spareNodes"])] if status.get("spareNodes") else []),
        ("attempt", str(status.get("attempt", UNKNOWN))),
        ("restarts", str(status.get("restarts", 0))),
    ]
    text = Text()
    for label, value in facts:
        text.append(f"{label} ", style="dim").append(f"{value}    ")
    text.rstrip()
    if saved:
        text.append("\ncheckpoint ", style="dim").append(
            f"step {saved['step']}, {age(seconds_since(saved['time'], now))} ago, {saved['path']}"
        )
    return text


def _conditions(job: Manifest, now: float) -> Table | None:
    table = plain_table()
    for name in ("type", "status", "reason", "age"):
        table.add_column(name, no_wrap=True)
    table.add_column("message", overflow="fold")
    for found in job.get("status", {}).get("conditions") or []:
        holds = found["status"]
        good = (
            {"True": "False", "False": "True"}.get(holds, "")
            if found["type"] in BAD_WHEN_TRUE
            else holds
        )
        table.add_row(
            found["type"],
            Text(holds, style=GOOD.get(good, "")),
            found.get("reason", ""),
            age(seconds_since(found.get("lastTransitionTime"), now)),
            _lines(found.get("message", "")),
        )
    return table if table.row_count else None


def _failures(job: Manifest, now: float) -> Table | None:
    table = plain_table()
    for name in ("attempt", "reason", "exit", "node", "age"):
        table.add_column(name, no_wrap=True)
    table.add_column("message", overflow="fold")
    failures = job.get("status", {}).get("failures") or []
    for index, failure in enumerate(failures):
        message = failure.get("message", "")
        last = index == len(failures) - 1
        table.add_row(
            str(failure["attempt"]),
            Text(failure["reason"], style="red"),
            str(failure.get("exitCode", UNKNOWN)),
            failure.get("node", UNKNOWN),
            age(seconds_since(failure["time"], now)),
            _lines(message) if last else Text(one_line(message.strip().rpartition("\n")[2])),
        )
    return table if table.row_count else None


def _pods(pods: Sequence[Manifest], now: float) -> Table | None:
    table = plain_table()
    table.add_column("role", no_wrap=True)
    table.add_column("pod", overflow="fold")
    table.add_column("state", overflow="fold")
    table.add_column("node", overflow="fold")
    table.add_column("restarts", justify="right")
    table.add_column("age", justify="right")
    for name in dict.fromkeys((*ROLES, *sorted({role(pod) for pod in pods}))):
        own = sorted((p for p in pods if role(p) == name), key=lambda p: str(p["metadata"]["name"]))
        many = len(own) > SHOWN_PODS
        listed = [pod for pod in own if not is_ready(pod)][:SHOWN_PODS] if many else own
        for pod in listed:
            word = one_line(state(pod))
            table.add_row(
                name,
                pod["metadata"]["name"],
                Text(word, style="" if is_ready(pod) else "yellow"),
                pod.get("spec", {}).get("nodeName", UNKNOWN),
                str(restarts(pod)),
                age(seconds_since(pod["metadata"]["creationTimestamp"], now)),
            )
        if many:
            ready = sum(map(is_ready, own))
            table.add_row(name, f"{len(own)} pods", f"{ready} of them ready", "", "", "")
    return table if table.row_count else None


def _events(events: Sequence[Manifest], now: float) -> Table | None:
    table = plain_table()
    for name in ("age", "reason"):
        table.add_column(name, no_wrap=True)
    table.add_column("message", overflow="fold")
    for event in sorted(events, key=_event_time)[-SHOWN_EVENTS:]:
        times = f" (×{event['count']})" if (event.get("count") or 1) > 1 else ""
        table.add_row(
            age(seconds_since(_event_time(event) or None, now)),
            Text(event.get("reason", ""), style="yellow" if event.get("type") == "Warning" else ""),
            _lines(event.get("message", "")).append(times, style="dim"),
        )
    return table if table.row_count else None


def _event_time(event: Manifest) -> str:
    return str(
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def _lines(text: str) -> Text:
    """A message of several lines without what would move the terminal's cursor."""
    return Text("\n".join(one_line(line) for line in text.strip().splitlines()))


def _titled(title: str, table: Table | None) -> list[RenderableType]:
    return [] if table is None else [Text(""), Text(title, style="bold"), table]
