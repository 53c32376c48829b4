"""A recorded trace: its bytes, and which operators took most of its time. Pure, without torch."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_runtime.record.event_types import Operator

FOLDER = "profile"
"""Of a run's traces, in its folder."""
NAME = re.compile(rf"{FOLDER}/step-[0-9]+/rank-[0-9]+-[a-z0-9-]+\.json\.gz")
"""Of a trace's file, in the run's folder: what an event names otherwise is no trace."""
LEFT_OUT = ("python_function", "user_annotation", "Trace", "overhead")
"""Categories that are no operators: they enclose such, or are the profiler's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one device recorded of one state in a step. part: counted from 1, where the state ran several
    times in it. seconds: that it took, recorded. content: the Chrome trace, packed by gzip; empty where
    `problem` says why there is none."""

    state: str
    step: int
    rank: int
    part: int = 1
    seconds: float = 0.0
    content: bytes = b""
    operators: tuple[Operator, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """Of its file, in the run's folder."""
        state = self.state if self.part == 1 else f"{self.state}-{self.part}"
        return f"{FOLDER}/step-{self.step}/rank-{self.rank}-{state}.json.gz"


def top_operators(trace: bytes, *, most: int) -> tuple[Operator, ...]:
    """Those of a Chrome trace with most time of their own, on all threads and streams.

    trace: JSON, a list of events or an object that has them.
    """
    document = json.loads(trace)
    events = document["traceEvents"] if isinstance(document, Mapping) else document
    sums: dict[str, list[float]] = {}
    for name, microseconds in _self_times(events):
        found = sums.setdefault(name, [0, 0.0])
        found[0] += 1
        found[1] += microseconds
    order = sorted(sums, key=lambda name: -sums[name][1])[:most]
    return tuple(
        Operator(name=name, calls=int(sums[name][0]), self_seconds=sums[name][1] / 1e6)
        for name in order
    )


def _self_times(events: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, float]]:
    """(name, microseconds of its own) of each complete event. Events of a thread lie within each other."""
    threads: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") not in LEFT_OUT:
            threads.setdefault((event.get("pid"), event.get("tid")), []).append(event)
    for members in threads.values():
        yield from _of_thread(sorted(members, key=lambda e: (_start(e), -_length(e))))


def _of_thread(events: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, float]]:
    open_events: list[
        tuple[str, float, list[float]]
    ] = []  # name, end, what is left of its own time
    for event in events:
        start, length = _start(event), _length(event)
        while open_events and open_events[-1][1] <= start:
            name, _, left = open_events.pop()
            yield name, left[0]
        if open_events:
            open_events[-1][2][0] -= length
        open_events.append((str(event.get("name")), start + length, [length]))
    for name, _, left in reversed(open_events):
        yield name, left[0]


def _start(event: Mapping[str, Any]) -> float:
    return float(event["ts"])


def _length(event: Mapping[str, Any]) -> float:
    return float(event.get("dur", 0.0))
