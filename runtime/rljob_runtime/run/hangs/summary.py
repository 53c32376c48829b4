"""What is written of a hang, as text. Pure."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_runtime.run.hangs.switchboard import Heard
from rljob_runtime.run.hangs.verdict import Dock, Verdict, collective_text

MAX_LINES = 400
"""Of a section: 384 devices have a line each."""


def summary_text(
    title: str, verdict: Verdict, heard: Mapping[str, Heard], dock: Dock, *, now: float, step: int
) -> str:
    """The file that is read first: who is missing, who waits for what, the dock's rows."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    places = {name: f" (process {one.pid} on {one.host})" for name, one in heard.items()}
    missing = [f"{m.process}{places.get(m.process, '')} {m.why}" for m in verdict.missing]
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
    for name, found in sections.items():
        lines += ["", f"{name}:", *(f"  {line}" for line in found[:MAX_LINES])]
        if len(found) > MAX_LINES:
            lines.append(f"  and {len(found) - MAX_LINES} more")
    return "\n".join(lines) + "\n"


def process_text(one: Heard, now: float) -> str:
    """A process' file."""
    head = f"{one.process}, process {one.pid} on {one.host}"
    last = f"its last word came {now - one.heard:.1f} s before this was written"
    if one.gone is not None:
        return f"{head}\nits connection ended {now - one.gone:.1f} s before this was written\n"
    if one.report is None:
        return f"{head}\ndid not answer; {last}\n"
    collectives = [*_collective_lines(one.report)] or ["none"]
    title, stacks = "collectives, the waiting and the latest first:", str(one.report["stacks"])
    children = [
        f"\nchild process, {name}:\n{text}" for name, text in one.report.get("children", {}).items()
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
            what = collective_text(group, last)
            yield f"  {last['state']} {last['seconds']:.3f} s ago: {what}{error}"


def _dock_lines(dock: Dock) -> Iterator[str]:
    for role, told in dock.items():
        if "error" in told:
            yield f"{role}: {told['error']}"
        elif "state" in told:
            yield from _controller_lines(told)
        else:
            room = f"{told['bytes']} of {told['capacity_bytes']} bytes"
            waiting = told["waiting_for_room"]
            held_up = f"; {waiting} wait for room" if any(waiting.values()) else ""
            yield f"{role}: {told['rows']} rows, {room}{held_up}"


def _controller_lines(told: Mapping[str, Any]) -> Iterator[str]:
    state = told["state"]
    if not told["batches"] and not told["waiting"]:
        yield f"state {state}: no rows"
    for name, batch in told["batches"].items():
        rows = ", ".join(f"{count} {kind}" for kind, count in batch["rows"].items())
        put = f"{batch['put']} of {batch['total']} were put, {batch['acknowledged']} are done"
        lacking = batch["lacking_columns"]
        columns = f"; lacking columns: {lacking}" if lacking else ""
        yield f"state {state}, {name}: {put}; {rows}{columns}"
    for lease in told["leases"]:
        rows = ", ".join(f"{count} rows of {batch}" for batch, count in lease["rows"].items())
        yield f"state {state}: {lease['owner']} holds {rows} for {lease['held_seconds']:.1f} s"
    for claim in told["waiting"]:
        yield (
            f"state {state}: {claim['owner']} waits {claim['waited_seconds']:.1f} s"
            + (f": {claim['why']}" if claim["why"] else f" for rows of {claim['batch']}")
        )
