"""Writes traces of the devices as files of the run's folder and as events. Called by the driver after a
step."""

from collections.abc import Iterable
from pathlib import Path

from rljob_runtime.record.event_types import ProfileEvent, WarningEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.profiles.traces import Trace


def write_traces(traces: Iterable[Trace], *, folder: Path, log: EventLog) -> None:
    """Write each trace and its event, or a warning if there is none. Disk errors are not raised."""
    for trace in traces:
        problem = trace.problem or _write_trace(trace, folder)
        if problem:
            message = f"profile of {trace.state} on device {trace.rank} {problem}"
            log.write(WarningEvent(step=trace.step, message=message))
            continue
        log.write(
            ProfileEvent(
                step=trace.step,
                rank=trace.rank,
                state=trace.state,
                path=trace.name,
                seconds=trace.seconds,
                bytes=len(trace.content),
                operators=[*trace.operators],
            )
        )


def _write_trace(trace: Trace, folder: Path) -> str:
    """Write the trace. Return the error, or "" on success."""
    file = folder / trace.name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(trace.content)
    except OSError as error:
        return f"could not be written: {error}"
    return ""
