"""Times at which a stage ran on each worker, as events: the rows of the report's timeline. Called by the
driver."""

from collections.abc import Sequence

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.record.event_types import PhaseEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.spans import StageSpan


def write_spans(
    log: EventLog,
    job: ResolvedJob,
    *,
    stage: str,
    step: int,
    spans: Sequence[StageSpan | None],
    devices: Sequence[int],
    held_out: bool,
) -> float | None:
    """Write one `phase` event per worker; return the seconds of the slowest, or None if none ran.

    spans: by worker, None for those that did not run the stage. devices: device numbers of the workers, if
    they are devices.
    """
    workers = devices or range(len(spans))
    present = [(n, span) for n, span in zip(workers, spans, strict=False) if span is not None]
    for worker, span in present:
        role, device = _role_and_number(stage, worker, job)
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
    return max((span.seconds for _, span in present), default=None)


def _role_and_number(stage: str, worker: int, job: ResolvedJob) -> tuple[str, int]:
    """Return the worker's role and its number within the role. worker: number of the device, if it is one."""
    if stage == "reward":
        return "reward", worker
    if job.spec.placement.mode == "colocated":
        return "device", worker
    updating = job.spec.roles.update  # those come first
    return ("update", worker) if worker < updating else ("rollout", worker - updating)
