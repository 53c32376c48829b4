"""A recorded trace: its bytes, and the operators that took most of its time. Pure, without torch."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_runtime.record.event_types import ProfiledOperator

FOLDER = "profile"
"""Folder of the traces within the run's folder."""
NAME = re.compile(rf"{FOLDER}/step-[0-9]+/rank-[0-9]+-[a-z0-9-]+\.json\.gz")
"""Pattern of a trace's path within the run's folder; any other path in an event is rejected."""
LEFT_OUT = ("python_function", "user_annotation", "Trace", "overhead")
"""Categories that are no operators: they enclose operators or belong to the profiler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace of one state on one device in one step.

    occurrence: counted from 1, if the state ran several times in the step. seconds: duration of the recorded
    state. content: the Chrome trace, compressed by gzip; empty if `problem` describes why there is none.
    """

    state: str
    step: int
    rank: int
    occurrence: int = 1
    seconds: float = 0.0
    content: bytes = b""
    operators: tuple[ProfiledOperator, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """Path of the trace within the run's folder."""
        state = self.state if self.occurrence == 1 else f"{self.state}-{self.occurrence}"
        return f"{FOLDER}/step-{self.step}/rank-{self.rank}-{state}.json.gz"


def top_operators(trace: bytes, *, most: int) -> tuple[ProfiledOperator, ...]:
    """Operators of a Chrome trace with the longest self time, on all threads and streams.

    trace: JSON, a list of events or an object that contains one.
    """
    document = json.loads(trace)
    events = document["traceEvents"] if isinstance(document, Mapping) else document
    sums: dict[str, list[float]] = {}
    for name, microseconds in _self_times(events):
        totals = sums.setdefault(name, [0, 0.0])
        totals[0] += 1
        totals[1] += microseconds
    order = sorted(sums, key=lambda name: -sums[name][1])[:most]
    return tuple(
        ProfiledOperator(name=name, calls=int(sums[name][0]), self_seconds=sums[name][1] / 1e6)
        for name in order
    )


def _self_times(events: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, float]]:
    """Yield (name, self time in microseconds) of each complete event. Events of a thread are nested."""
    threads: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") not in LEFT_OUT:
            threads.setdefault((event.get("pid"), event.get("tid")), []).append(event)
    for members in threads.values():
        yield from _thread_self_times(sorted(members, key=lambda e: (_start(e), -_length(e))))


def _thread_self_times(events: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, float]]:
    open_events: list[tuple[str, float, list[float]]] = []  # name, end, remaining self time
    for event in events:
        start, length = _start(event), _length(event)
        while open_events and open_events[-1][1] <= start:
            name, _, self_time = open_events.pop()
            yield name, self_time[0]
        if open_events:
            open_events[-1][2][0] -= length
        open_events.append((str(event.get("name")), start + length, [length]))
    for name, _, self_time in reversed(open_events):
        yield name, self_time[0]


def _start(event: Mapping[str, Any]) -> float:
    return float(event["ts"])


def _length(event: Mapping[str, Any]) -> float:
    return float(event.get("dur", 0.0))
