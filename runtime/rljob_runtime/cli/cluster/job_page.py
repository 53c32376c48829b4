"""`rljob status NAME`: one job on one page. Pure functions of a snapshot of the job."""

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
from rljob_runtime.cli.cluster.job_table import PHASE_STYLES, UNKNOWN, or_unknown, plain_table
from rljob_runtime.report.display.wording import count, duration, figure, one_line

WIDTH = 100
SHOWN_EVENTS = 8
SHOWN_PODS = 12
"""Limit of listed pods per role; with more pods, only those that are not ready are listed."""
GOOD = {"True": "green", "False": "yellow"}
BAD_WHEN_TRUE = ("Failed", "Stopping", "Suspended", "FewerReplicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """A job with its pods and events. notes: what could not be read, and why."""

    job: Manifest
    pods: Sequence[Manifest] = ()
    events: Sequence[Manifest] = ()
    notes: Sequence[str] = field(default=())


def page(snapshot: JobSnapshot, *, unix_s: float, width: int = WIDTH) -> RenderableType:
    """Return the full page. unix_s: the current time."""
    width = min(width, WIDTH)
    blocks = [
        _header(snapshot.job, unix_s, width),
        _progress(snapshot.job, width),
        _figures(snapshot.job, unix_s),
        *_section("conditions", _conditions(snapshot.job, unix_s)),
        *_section("failures", _failures(snapshot.job, unix_s)),
        *_section("pods", _pods(snapshot.pods, unix_s)),
        *_section("events", _events(snapshot.events, unix_s)),
    ]
    return Group(
        *blocks, *(Text(f"note: {one_line(note)}", style="yellow") for note in snapshot.notes)
    )


def status_line(job: Manifest) -> str:
    """Format the job in one line, for output that is no terminal."""
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


def _header(job: Manifest, unix_s: float, width: int) -> RenderableType:
    metadata, status, job_phase = job["metadata"], job.get("status", {}), phase(job)
    text = Text(metadata["name"], style="bold").append(
        f"  {metadata['namespace']}", style="not bold dim"
    )
    since = status.get("startTime") or metadata["creationTimestamp"]
    spent = seconds_since(since, unix_s) - max(0.0, _since_end(status, unix_s))
    right = Text(job_phase, style=PHASE_STYLES.get(job_phase, "bold")).append(
        f"  {duration(spent)}", style="dim"
    )
    row = Table.grid(expand=True)
    row.width = width
    row.add_column(no_wrap=True)
    row.add_column(no_wrap=True, justify="right")
    row.add_row(text, right)
    return row


def _since_end(status: Manifest, unix_s: float) -> float:
    end = status.get("completionTime")
    return seconds_since(end, unix_s) if end else 0.0


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


def _figures(job: Manifest, unix_s: float) -> RenderableType:
    status = job.get("status", {})
    progress, saved = status.get("progress", {}), status.get("lastCheckpoint")
    facts = [
        ("reward", or_unknown(progress.get("reward"), figure)),
        ("tokens/s", or_unknown(progress.get("tokensPerSecond"), count)),
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
            f"step {saved['step']}, {age(seconds_since(saved['time'], unix_s))} ago, {saved['path']}"
        )
    return text


def _conditions(job: Manifest, unix_s: float) -> Table | None:
    table = plain_table()
    for name in ("type", "status", "reason", "age"):
        table.add_column(name, no_wrap=True)
    table.add_column("message", overflow="fold")
    for condition in job.get("status", {}).get("conditions") or []:
        holds = condition["status"]
        good = (
            {"True": "False", "False": "True"}.get(holds, "")
            if condition["type"] in BAD_WHEN_TRUE
            else holds
        )
        table.add_row(
            condition["type"],
            Text(holds, style=GOOD.get(good, "")),
            condition.get("reason", ""),
            age(seconds_since(condition.get("lastTransitionTime"), unix_s)),
            _message_text(condition.get("message", "")),
        )
    return table if table.row_count else None


def _failures(job: Manifest, unix_s: float) -> Table | None:
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
            age(seconds_since(failure["time"], unix_s)),
            _message_text(message) if last else Text(one_line(message.strip().rpartition("\n")[2])),
        )
    return table if table.row_count else None


def _pods(pods: Sequence[Manifest], unix_s: float) -> Table | None:
    table = plain_table()
    table.add_column("role", no_wrap=True)
    table.add_column("pod", overflow="fold")
    table.add_column("state", overflow="fold")
    table.add_column("node", overflow="fold")
    table.add_column("restarts", justify="right")
    table.add_column("age", justify="right")
    for name in dict.fromkeys((*ROLES, *sorted({role(pod) for pod in pods}))):
        role_pods = sorted(
            (p for p in pods if role(p) == name), key=lambda p: str(p["metadata"]["name"])
        )
        is_summarized = len(role_pods) > SHOWN_PODS
        listed = (
            [pod for pod in role_pods if not is_ready(pod)][:SHOWN_PODS]
            if is_summarized
            else role_pods
        )
        for pod in listed:
            pod_state = one_line(state(pod))
            table.add_row(
                name,
                pod["metadata"]["name"],
                Text(pod_state, style="" if is_ready(pod) else "yellow"),
                pod.get("spec", {}).get("nodeName", UNKNOWN),
                str(restarts(pod)),
                age(seconds_since(pod["metadata"]["creationTimestamp"], unix_s)),
            )
        if is_summarized:
            ready = sum(map(is_ready, role_pods))
            table.add_row(name, f"{len(role_pods)} pods", f"{ready} of them ready", "", "", "")
    return table if table.row_count else None


def _events(events: Sequence[Manifest], unix_s: float) -> Table | None:
    table = plain_table()
    for name in ("age", "reason"):
        table.add_column(name, no_wrap=True)
    table.add_column("message", overflow="fold")
    for event in sorted(events, key=_event_time)[-SHOWN_EVENTS:]:
        times = f" (×{event['count']})" if (event.get("count") or 1) > 1 else ""
        table.add_row(
            age(seconds_since(_event_time(event) or None, unix_s)),
            Text(event.get("reason", ""), style="yellow" if event.get("type") == "Warning" else ""),
            _message_text(event.get("message", "")).append(times, style="dim"),
        )
    return table if table.row_count else None


def _event_time(event: Manifest) -> str:
    return str(
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def _message_text(text: str) -> Text:
    """Return a message of several lines without control characters that move the terminal's cursor."""
    return Text("\n".join(one_line(line) for line in text.strip().splitlines()))


def _section(title: str, table: Table | None) -> list[RenderableType]:
    return [] if table is None else [Text(""), Text(title, style="bold"), table]
