"""The share of a run's time in which each worker had work, from the phases of its events. Pure.

Shown by the report, and by benchmarks that compare flows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_runtime.display.history import PHASES, RunHistory, number, row_name
from rljob_runtime.events import Event


@dataclass(frozen=True, slots=True)
class Busy:
    """Of one worker, named as in the timeline: shares of the time, 0 to 1. phases: by name. whole: of all
    phases, which may overlap."""

    worker: str
    phases: dict[str, float]
    whole: float


def busy_workers(history: RunHistory, *, since: float, until: float) -> list[Busy]:
    """Between two times (unix seconds), by the worker's name. What a phase waited for samples is no work."""
    found: dict[str, list[Event]] = {}
    for phase in (phase for step in sorted(history.phases) for phase in history.phases[step]):
        if phase["start"] < until and phase["end"] > since:
            found.setdefault(row_name(phase), []).append(phase)
    workers = []
    for worker in sorted(found):
        named = {
            name: sum(_worked(p, since, until) for p in found[worker] if p["name"] == name)
            / (until - since)
            for name in _in_order(phase["name"] for phase in found[worker])
        }
        covered = _covered(found[worker], since, until) / (until - since)
        workers.append(Busy(worker, named, min(sum(named.values()), covered)))
    return workers


def _worked(phase: Event, since: float, until: float) -> float:
    """Seconds of a phase within the times, without its share of those in which it waited."""
    whole = phase["end"] - phase["start"]
    if whole <= 0:
        return 0.0
    waited = number(phase.get("waited_seconds", 0.0)) / whole
    within = min(phase["end"], until) - max(phase["start"], since)
    return float(within * (1 - min(1.0, waited)))


def _covered(phases: Iterable[Event], since: float, until: float) -> float:
    """Seconds in which at least one of the phases ran."""
    seconds, reached = 0.0, since
    for start, end in sorted((phase["start"], phase["end"]) for phase in phases):
        end = min(end, until)
        if end > reached:
            seconds += end - max(start, reached)
            reached = end
    return seconds


def _in_order(names: Iterable[str]) -> Iterator[str]:
    places = {name: place for place, name in enumerate(PHASES)}
    yield from sorted(dict.fromkeys(names), key=lambda name: places.get(name, len(places)))
