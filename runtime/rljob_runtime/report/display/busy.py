"""The share of a run's time in which each worker was busy, from its phase events. Pure.

Used by the report, and by benchmarks that compare flows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_runtime.report.display.history import PHASES, RunHistory


@dataclass(frozen=True, slots=True)
class Busy:
    """The busy shares of one worker, named as in the timeline: shares of the time, 0 to 1.

    phases: by name. whole: of all phases, which may overlap.
    """

    worker: str
    phases: dict[str, float]
    whole: float


def busy_workers(history: RunHistory, *, since: float, until: float) -> list[Busy]:
    """Return the busy shares between two times (unix seconds), by worker name.

    Waits of a phase for samples are not counted.
    """
    seconds = until - since
    workers = []
    for worker, time in sorted(history.busy_totals(since=since, until=until).workers.items()):
        shares = {name: time.worked[name] / seconds for name in _in_order(time.worked)}
        workers.append(Busy(worker, shares, min(sum(shares.values()), time.seconds() / seconds)))
    return workers


def _in_order(names: Iterable[str]) -> Iterator[str]:
    order = {name: index for index, name in enumerate(PHASES)}
    yield from sorted(dict.fromkeys(names), key=lambda name: order.get(name, len(order)))
