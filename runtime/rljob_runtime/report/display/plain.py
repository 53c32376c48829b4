"""Progress as plain lines, for logs and pipes: one short line per step, without control characters."""

from collections.abc import Callable
from typing import IO

from rljob_api.spec.terminal_text import printable
from rljob_runtime.record.event_types import (
    AlarmEvent,
    BestEvent,
    CheckpointEvent,
    CopiedEvent,
    EvaluationEvent,
    Event,
    HangEvent,
    ProgressEvent,
    RecoveryEvent,
    ReplicasEvent,
    ResizeEvent,
    RewardErrorEvent,
    RunFinishedEvent,
    RunStartedEvent,
    StepEvent,
    StragglerEvent,
    WarningEvent,
)
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.wording import (
    accuracy_text,
    alarm_text,
    best_text,
    count,
    duration,
    figure,
    headline,
    metric_of,
    one_line,
    percent,
    recovery_text,
    replicas_text,
    resize_text,
    seconds_of,
    straggler_text,
    summary_rows,
)

PROGRESS_SECONDS = 2.0
STEP_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("pass", "pass_rate", percent),
    ("length", "response_length/mean", figure),
    ("entropy", "entropy", figure),
    ("kl", "kl", figure),
    ("clip", "clip_fraction", percent),
    ("mismatch", "mismatch/kl", figure),
    ("stale", "staleness", figure),
    ("tok/s", "tokens_per_second", count),
    ("pictures/s", "pictures_per_second", figure),
    ("picture tok/s", "picture_tokens_per_second", count),
)


class PlainDisplay:
    """Writes a line to `stream` for each important event; progress lines are 2 s apart.

    report: returns the path of the report if there is one, called at the end. earlier: history before a
    resume.
    """

    def __init__(
        self,
        stream: IO[str],
        *,
        report: Callable[[], str | None],
        earlier: RunHistory | None = None,
    ) -> None:
        self._stream = stream
        self._report = report
        self._history = earlier or RunHistory()
        self._history.forget_details(before=self._history.step)
        self._progress_time = float("-inf")

    def on_event(self, event: Event) -> None:
        """Write the line of an event."""
        self._history.add(event)
        if isinstance(event, StepEvent):
            self._history.forget_details(before=event.step)
        line = self._line(event)
        if line:
            self._write_line(line)

    def close(self) -> None:
        """Write the result of the run."""
        if self._history.finished is None:
            return
        for label, text in summary_rows(self._history):
            self._write_line(f"  {label}: {text}")
        report = self._report()
        if report:
            self._write_line(f"  report: {report}")
        for hint in self._history.hints:
            self._write_line(f"  next: {one_line(hint)}")

    def _write_line(self, line: str) -> None:
        self._stream.write(printable(line) + "\n")
        self._stream.flush()

    def _line(self, event: Event) -> str | None:
        match event:
            case RunStartedEvent():
                return start_line(event)
            case StepEvent():
                return step_line(self._history)
            case EvaluationEvent():
                return evaluation_line(event)
            case CheckpointEvent():
                return f"checkpoint of step {event.step}: {event.path}"
            case ResizeEvent():
                return resize_text(event)
            case RecoveryEvent():
                return recovery_text(event)
            case ReplicasEvent():
                return replicas_text(event)
            case StragglerEvent():
                return (
                    f"warning: {straggler_text(event)}"
                    if event.status == "slow"
                    else straggler_text(event)
                )
            case BestEvent():
                return f"best checkpoint so far: {best_text(event)}"
            case AlarmEvent():
                return alarm_text(event)
            case CopiedEvent():
                return f"copied the checkpoint of step {event.step} to {event.uri}"
            case HangEvent():
                return f"hang in {event.stage}: {one_line(event.message)}"
            case WarningEvent():
                return f"warning: {one_line(event.message)}"
            case RewardErrorEvent():
                return f"reward {event.reward} failed: {one_line(event.message)}"
            case RunFinishedEvent():
                message = f": {one_line(event.message)}" if event.message else ""
                return headline(self._history) + message
            case ProgressEvent() if event.time - self._progress_time >= PROGRESS_SECONDS:
                self._progress_time = event.time
                return one_line(event.message)
        return None


def evaluation_line(event: EvaluationEvent) -> str:
    """Format an evaluation: `evaluation after step 20: accuracy 73.0 % (69.1–76.9)`, and each suite."""
    line = f"evaluation after step {event.step}: accuracy {accuracy_text(event)}"
    suites = (event.suites or {}).items()
    return ", ".join([line, *(f"{name} {accuracy_text(suite)}" for name, suite in suites)])


def start_line(event: RunStartedEvent) -> str:
    """Format the start of a run: `job: 140 steps, model tiny, grpo, 2 devices`."""
    facts = [f"{event.steps} steps"]
    if event.model:
        facts.append(f"model {event.model}")
    if event.algorithm:
        facts.append(event.algorithm)
    if event.devices:
        facts.append(f"{event.devices} device{'s' if event.devices != 1 else ''}")
    if event.resumed_from is not None:
        facts.append(f"resumed after step {event.resumed_from}")
    return f"{event.name}: " + ", ".join(facts)


def step_line(history: RunHistory) -> str:
    """Format the last step in one line; missing metrics are left out."""
    last = history.last_step()
    assert last is not None, "a step's line is asked for after its event"
    parts = [f"step {last.step}/{history.total_steps}"]
    reward, spread = metric_of(history, "reward/mean"), metric_of(history, "reward/std")
    if reward is not None:
        around = "" if spread is None else f" ±{figure(spread)}"
        parts.append(f"reward {figure(reward)}{around}")
    for label, name, text in STEP_COLUMNS:
        value = metric_of(history, name)
        if value is not None:
            parts.append(f"{label} {text(value).replace(' %', '%').replace(' ', '')}")
    if last.step in history.reshards:
        parts.append(f"reshard {seconds_of(history.reshards[last.step].seconds)}")
    if (in_flight := history.switched_to()) is not None:
        parts.append(f"in flight {seconds_of(in_flight.received_seconds)}")
    parts.append(f"took {seconds_of(last.seconds)}")
    eta = history.eta_seconds()
    if eta:
        parts.append(f"eta {duration(eta)}")
    return "  ".join(parts)
