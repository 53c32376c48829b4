"""The event log of a run: append-only JSON Lines, the single source of all displays.

The driver writes it, the terminal subscribes to it, and the report and other tools read the file. Writing
never raises into training: failures are counted and logged once. `event_types` defines the events.
"""

import contextlib
import gc
import json
import logging
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

import msgspec
from pydantic import Field, TypeAdapter, ValidationError

from rljob_api.spec.json_text import parse_json
from rljob_runtime.record.event_types import (
    AlarmEvent,
    AnyEvent,
    CheckpointEvent,
    EvaluationEvent,
    Event,
    Group,
    HangEvent,
    ProgressEvent,
    RecoveryEvent,
    RunFinishedEvent,
    RunStartedEvent,
    StepEvent,
    WarningEvent,
)

logger = logging.getLogger(__name__)

Subscriber = Callable[[Event], None]
EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[AnyEvent, Field(discriminator="kind")])
DURABLE = (CheckpointEvent, RunFinishedEvent)
OF_PROCESSES = (
    HangEvent,
    ProgressEvent,
    RecoveryEvent,
    RunFinishedEvent,
    RunStartedEvent,
    WarningEvent,
)
ABOUT = (
    "step", "name", "role", "device", "devices", "evaluation", "alarm", "state", "status", "reward",
    "from_", "to",
)  # fmt: skip
"""Fields that distinguish events of one kind."""
HEAD = re.compile(rb'\{"time": ?[^,"]*, ?"kind": ?"(\w+)"')
"""Beginning of a line that `EventLog` wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BriefStep(StepEvent):
    """A step without samples, which are most of a long log."""

    samples: ClassVar[list[Group]] = []  # type: ignore[misc]


@dataclass(frozen=True, slots=True, kw_only=True)
class BriefEvaluation(EvaluationEvent):
    """An evaluation without samples."""

    samples: ClassVar[list[Group]] = []  # type: ignore[misc]


def _decoders(*types: type[Event]) -> dict[bytes, msgspec.json.Decoder[Event]]:
    kinds = {get_args(each.__dataclass_fields__["kind"].type)[0]: each for each in types}
    return {kind.encode(): msgspec.json.Decoder(each) for kind, each in kinds.items()}


DECODERS = _decoders(*get_args(AnyEvent))
"""Fast decoders for events that match their type; pydantic finds the errors of all other lines."""
DETAILS = (b"phase", b"dock")
BRIEF_DECODERS = DECODERS | _decoders(BriefStep, BriefEvaluation)
LAST_TIME = 253_402_300_800.0
"""Unix seconds at the end of the year 9999; later ones have no date."""
MOST = 2.0**63
"""Largest magnitude of numbers in an event."""
ALIASED = (b"dock", b"resize")
"""Events with a field `from`, which msgspec knows by its Python name."""


class EventLog:
    """Appends events to a file and passes each to the subscribers. Never raises once constructed.

    failures: number of events that could not be written, and of subscribers' errors. already_written: events
    that a killed process wrote before this one took over, by `event_identity`; they are not written again. A
    resumed run appends to the same file. Raises OSError if the file cannot be opened.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.failures = 0
        self.already_written = Counter[object]()
        self._clock = clock
        self._subscribers: list[Subscriber] = []
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._torn = _has_torn_end(self._file)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each event after it was written, as a reader would receive it."""
        self._subscribers.append(subscriber)

    def write(self, event: Event) -> None:
        """Append one event in one write. Checkpoints and the run's end are synced to disk."""
        if self.already_written and self.already_written[identity := event_identity(event)] > 0:
            self.already_written[identity] -= 1
            return
        event = replace(event, time=self._clock())
        line = json.dumps(plain(event), ensure_ascii=False, separators=(",", ":"))
        try:
            self._append(line)
            if isinstance(event, DURABLE) and self._file is not None:
                os.fsync(self._file)
        except (OSError, ValueError) as error:
            self._fail("event %s not written to %s: %s", event.kind, self.path, error)
        if self._subscribers:
            event = parse_event(line) or event
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:
                self._fail("display failed at event %s: %s: %r", event.kind, subscriber, error)

    @property
    def size(self) -> int:
        """Size of the file in bytes; 0 once it is closed."""
        return 0 if self._file is None else os.fstat(self._file).st_size

    def close(self) -> None:
        """Close the file. Later events are passed to the subscribers only and count as failures."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: str) -> None:
        if self._file is None:
            raise ValueError("the log is closed")
        data = (("\n" if self._torn else "") + line + "\n").encode("utf-8", errors="replace")
        self._torn = True
        written = os.write(self._file, data)
        if written < len(data):
            raise OSError(f"{written} of {len(data)} bytes written")
        self._torn = False

    def _fail(self, message: str, *arguments: object) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.warning(message, *arguments)
            logger.warning("training goes on; later failures of this log are only counted")


def event_identity(event: Event) -> object:
    """Return a key that is equal if a process that takes over repeats the event, whatever it measures.

    None for events about processes, which are always new.
    """
    if isinstance(event, OF_PROCESSES):
        return None
    return event.kind, *(str(getattr(event, name, None)) for name in ABOUT)


def read_events(path: Path) -> list[Event]:
    """Read the events of a run in order, as if it had not been interrupted (see `cut_rewound`). Raises
    OSError."""
    with path.open("rb") as lines:
        return cut_rewound(events_in(lines))


def events_in(lines: Iterable[bytes], *, brief: bool = False) -> Iterator[Event]:
    """Yield the events of a log's lines.

    Skips lines that are no event: torn lines of a killed writer, unknown kinds, missing fields. brief:
    phases, docks and samples may be left out, which takes a fifth of the time.
    """
    decoders = BRIEF_DECODERS if brief else DECODERS
    for line in lines:
        head = HEAD.match(line)
        kind = head[1] if head else b""
        if brief and kind in DETAILS:
            continue
        try:
            event = decoders[kind].decode(
                line.replace(b'"from":', b'"from_":') if kind in ALIASED else line
            )
        except (KeyError, ValueError, RecursionError, msgspec.MsgspecError):
            if (repaired := parse_event(_without_large_numbers(line))) is None:
                continue
            event = repaired
        if 0 <= event.time < LAST_TIME:
            yield event


@contextlib.contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Disable the garbage collector, which finds nothing in events that are retained.

    Scanning them repeatedly takes as long as reading them.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def lines_until(log: Iterable[bytes], offset: int) -> Iterator[bytes]:
    """Yield the first lines of a log up to the one that passes the offset; the others remain unread."""
    while offset > 0 and (line := next(iter(log), b"")):
        offset -= len(line)
        yield line


def parse_event(line: str | bytes) -> Event | None:
    """Parse the event of a line, or return None. Unknown fields, and fields of another type, are ignored."""
    try:
        event = EVENTS.validate_json(line, strict=True)
    except ValidationError as error:
        wrong = {problem["loc"][1] for problem in error.errors() if len(problem["loc"]) > 1}
        fields_by_name = parse_json(line) if wrong else {}
        valid_fields = {name: value for name, value in fields_by_name.items() if name not in wrong}
        return (
            parse_event(json.dumps(valid_fields))
            if len(valid_fields) < len(fields_by_name)
            else None
        )
    return event if 0 <= event.time < LAST_TIME else None


def _without_large_numbers(line: bytes) -> str:
    """Replace numbers that are too large to be valid by null. Return "" if the line is not JSON."""

    def bounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: bounded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [bounded(item) for item in value]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number and not abs(value) < MOST else value

    try:
        return json.dumps(bounded(parse_json(line)))
    except ValueError:
        return ""


def cut_rewound(events: Iterable[Event]) -> list[Event]:
    """Remove the events that a resumed or rolled-back run repeated.

    Every `run_started` but the first drops events of steps after its `resumed_from` (0 if it resumed from no
    checkpoint). An `alarm` drops those after its `rolled_back_to`; alarms that rolled a run back remain. The
    last `step` and `evaluation` event of a step counts.
    """
    retained: list[Event] = []
    for event in events:
        if isinstance(event, RunStartedEvent) and retained:
            retained = _drop_later(retained, event.resumed_from or 0)
            retained = [e for e in retained if not isinstance(e, RunFinishedEvent)]
        elif (back := rolled_back_to(event)) is not None:
            retained = _drop_later(retained, back)
        retained.append(event)
    last = {(e.kind, e.step): e for e in retained if isinstance(e, StepEvent | EvaluationEvent)}
    return [
        e
        for e in retained
        if not isinstance(e, StepEvent | EvaluationEvent) or last[e.kind, e.step] is e
    ]


def rolled_back_to(event: Event) -> int | None:
    """Return the step that an alarm or a recovery rolled the run back to, if it did."""
    return event.rolled_back_to if isinstance(event, AlarmEvent | RecoveryEvent) else None


def _drop_later(events: list[Event], step: int) -> list[Event]:
    def stays(event: Event) -> bool:
        return (getattr(event, "step", None) or 0) <= step or rolled_back_to(event) is not None

    return [event for event in events if stays(event)]


def plain(value: object) -> Any:
    """Convert a value to JSON types: paths to text, numpy and torch scalars to numbers, NaN to None.

    A dataclass becomes an object of its fields that are not None.
    """
    if is_dataclass(value):
        values = {each: getattr(value, each.name) for each in fields(value)}
        return {
            each.name.rstrip("_"): plain(item)
            for each, item in values.items()
            if item is not None or each.metadata
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    item = getattr(value, "item", None)
    try:
        return plain(item()) if callable(item) else str(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)


def _has_torn_end(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
