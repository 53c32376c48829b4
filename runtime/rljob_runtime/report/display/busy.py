"""The share of a run's time in which each worker had work, from the phases of its events. Pure.

Shown by the report, and by benchmarks that compare flows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_runtime.report.display.history import PHASES, RunHistory


@dataclass(frozen=True, slots=True)
class Busy:
    """Of one worker, named as in the timeline: shares of the time, 0 to 1. phases: by name. whole: of all
    phases, which may overlap."""

    worker: str
    phases: dict[str, float]
    whole: float


def busy_workers(history: RunHistory, *, since: float, until: float) -> list[Busy]:
    """Between two times (unix seconds), by the worker's name. What a phase waited for samples is no work."""
    seconds = until - since
    workers = []
    for worker, time in sorted(history.busy_totals(since=since, until=until).workers.items()):
        named = {name: time.worked[name] / seconds for name in _in_order(time.worked)}
        workers.append(Busy(worker, named, min(sum(named.values()), time.seconds() / seconds)))
    return workers


def _in_order(names: Iterable[str]) -> Iterator[str]:
    places = {name: place for place, name in enumerate(PHASES)}
    yield from sorted(dict.fromkeys(names), key=lambda name: places.get(name, len(places)))
