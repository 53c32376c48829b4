"""When a stage ran on each worker, as events: the rows of the report's timeline. Called by the driver."""

from collections.abc import Sequence

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.record.event_types import PhaseEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.spans import Span


def write_spans(
    log: EventLog,
    job: ResolvedJob,
    *,
    stage: str,
    step: int,
    spans: Sequence[Span | None],
    devices: Sequence[int],
    held_out: bool,
) -> float | None:
    """Write one `phase` event a worker; returns the slowest's seconds, None where none ran.

    spans: by worker, None for those that did not run the stage. devices: the workers' numbers, where they
    are devices.
    """
    workers = devices or range(len(spans))
    known = [(n, span) for n, span in zip(workers, spans, strict=False) if span is not None]
    for worker, span in known:
        role, device = _place(stage, worker, job)
        log.write(
            PhaseEvent(
                name=stage,
                step=step,
                role=role,
                device=device,
                start=span.start,
                end=span.end,
                waited_seconds=span.waited,
                evaluation=held_out,
            )
        )
    return max((span.seconds for _, span in known), default=None)


def _place(stage: str, worker: int, job: ResolvedJob) -> tuple[str, int]:
    """Role of the worker, and its number among those of the role. worker: number of the device, where it is
    one."""
    if stage == "reward":
        return "reward", worker
    if job.spec.placement.mode == "colocated":
        return "device", worker
    updating = job.spec.roles.update  # those come first
    return ("update", worker) if worker < updating else ("rollout", worker - updating)
