"""The texts that are written about a hang. Pure."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_runtime.run.hangs.switchboard import KnownProcess
from rljob_runtime.run.hangs.verdict import Dock, HangVerdict, collective_text

MAX_LINES = 400
"""Longest section: 384 devices have a line each."""


def summary_text(
    title: str,
    verdict: HangVerdict,
    processes: Mapping[str, KnownProcess],
    dock: Dock,
    *,
    time_s: float,
    step: int,
) -> str:
    """Return the file to read first: the missing processes, what others wait for, and the dock's rows."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))
    locations = {
        name: f" (process {process.pid} on {process.host})" for name, process in processes.items()
    }
    missing = [
        f"{item.process}{locations.get(item.process, '')} {item.why}" for item in verdict.missing
    ]
    sections = {
        "missing": missing or ["nobody: all processes answer, and none is busy"],
        "waiting": verdict.waiting or ["nobody"],
        "idle": [", ".join(verdict.idle)] if verdict.idle else ["nobody"],
        "dock": [*_dock_lines(dock)] or ["it has not started"],
        "files": [
            "<process>.txt: Python stacks of all its threads and the last collective of each of its groups",
            "dock.json: rows by batch, column and state, leases, claims that wait",
        ],
    }
    lines = [title, f"{when}, {step} steps were done"]
    for name, section in sections.items():
        lines += ["", f"{name}:", *(f"  {line}" for line in section[:MAX_LINES])]
        if len(section) > MAX_LINES:
            lines.append(f"  and {len(section) - MAX_LINES} more")
    return "\n".join(lines) + "\n"


def process_text(process: KnownProcess, time_s: float) -> str:
    """Return the file of one process."""
    head = f"{process.process}, process {process.pid} on {process.host}"
    last_message = (
        f"its last word came {time_s - process.last_message_s:.1f} s before this was written"
    )
    if process.gone_s is not None:
        return f"{head}\nits connection ended {time_s - process.gone_s:.1f} s before this was written\n"
    if process.report is None:
        return f"{head}\ndid not answer; {last_message}\n"
    collectives = [*_collective_lines(process.report)] or ["none"]
    title, stacks = "collectives, the waiting and the latest first:", str(process.report["stacks"])
    children = [
        f"\nchild process, {name}:\n{text}"
        for name, text in process.report.get("children", {}).items()
    ]
    return "\n".join([head, "", title, *collectives, "", "stacks:", stacks, *children])


def _collective_lines(report: Mapping[str, Any]) -> Iterator[str]:
    if "facts_failed" in report:
        yield f"  not known: {report['facts_failed']}"
    for group in report.get("collectives", []):
        for note in group["waits"]:
            yield f"  waits {note['seconds']:.3f} s in {collective_text(group, note)}"
        last = group["last"]
        if last is not None and last["state"] != "waits":
            error = f": {last['error']}" if last["error"] else ""
            collective = collective_text(group, last)
            yield f"  {last['state']} {last['seconds']:.3f} s ago: {collective}{error}"


def _dock_lines(dock: Dock) -> Iterator[str]:
    for role, facts in dock.items():
        if "error" in facts:
            yield f"{role}: {facts['error']}"
        elif "state" in facts:
            yield from _controller_lines(facts)
        else:
            room = f"{facts['bytes']} of {facts['capacity_bytes']} bytes"
            waiting = facts["waiting_for_room"]
            held_up = f"; {waiting} wait for room" if any(waiting.values()) else ""
            yield f"{role}: {facts['rows']} rows, {room}{held_up}"


def _controller_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    state = facts["state"]
    if not facts["batches"] and not facts["waiting"]:
        yield f"state {state}: no rows"
    for name, batch in facts["batches"].items():
        rows = ", ".join(f"{count} {kind}" for kind, count in batch["rows"].items())
        put = f"{batch['put']} of {batch['total']} were put, {batch['acknowledged']} are done"
        lacking = batch["lacking_columns"]
        columns = f"; lacking columns: {lacking}" if lacking else ""
        yield f"state {state}, {name}: {put}; {rows}{columns}"
    for lease in facts["leases"]:
        rows = ", ".join(f"{count} rows of {batch}" for batch, count in lease["rows"].items())
        yield f"state {state}: {lease['owner']} holds {rows} for {lease['held_seconds']:.1f} s"
    for claim in facts["waiting"]:
        yield (
            f"state {state}: {claim['owner']} waits {claim['waited_seconds']:.1f} s"
            + (f": {claim['why']}" if claim["why"] else f" for rows of {claim['batch']}")
        )
