"""The transfer dock beside TransferQueue, a replay buffer in a Ray actor, and Ray's object store.

The same samples, a producer and three consumers in processes of their own, all sides in turns; a read
counts once every byte was summed. Beside them what the machine does by itself: a program that does the
same copies and sums with nothing between them (`peers/bare.py`), a round trip over a Unix socket.
TransferQueue gets its best case, see `peers/transfer_queue.py`.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.dock.sample_flow.machine import round_trips
from benchmarks.dock.sample_flow.measure import Runner
from benchmarks.dock.sample_flow.payload import Payload
from benchmarks.dock.sample_flow.processes import Group
from benchmarks.support.environment import QUEUE, make_environment
from benchmarks.support.results import Result, quantile, report, summarize

CAPACITY_BYTES = 768 << 20
OBJECT_STORE_BYTES = 2 << 30
OURS = {"read": "rljob", "view": "rljob, in place"}
BARE = {"read": "bare program", "view": "bare program, in place"}
SOCKET, OBJECTS = "Unix socket", "Ray object store"
LARGE = (Payload(256, 4096), Payload(1024, 8192), Payload(1024, 8192, ragged=True))
QUICK = (Payload(256, 4096), Payload(256, 4096, ragged=True))
ROUND_TRIPS = 1000
Taken = dict[tuple[str, str], list[float]]
"""Values of all repetitions by figure and side."""


SMALL = {
    "claim of 16 of 1024 rows, p50": 1 / 3,
    "claim of 16 of 1024 rows, p99": 1 / 8,
    "put of one row of 512 tokens, p50": 1 / 4,
    "claim and get of one row of 512 tokens, p50": 1 / 7,
}
"""Gains that are wanted over a round trip of a bare socket."""


def targets(figure: str, way: str, peers: Iterable[str]) -> dict[str, float]:
    """Gains that we want over some of the peers."""
    if not figure.endswith("to three states"):
        return {SOCKET: SMALL[figure]} if figure in SMALL else {}
    ragged, in_place = "ragged" in figure, way == "view"
    queue, objects, bare = (
        (18, None, 0.6) if ragged else (12, 2.5, 0.75) if in_place else (8, 1.7, None)
    )
    wanted = {peer: float(queue) for peer in peers if peer.startswith("TransferQueue")}
    if objects is not None:
        wanted[OBJECTS] = objects
    if bare is not None and in_place:
        wanted[BARE[way]] = bare
    return wanted


def queue(units: int) -> str:
    """TransferQueue's name with so many storage units."""
    return f"TransferQueue, {units} unit{'s' if units > 1 else ''}"


@contextmanager
def open_runners(units: Sequence[int]) -> Iterator[list[Runner]]:
    """Every side, ready to measure. units: TransferQueue's storage units, each in a Ray of its own."""
    programs = make_environment("transferqueue", QUEUE)
    with ExitStack() as stack:
        size = {"capacity": CAPACITY_BYTES}
        ours = Group(sys.executable, {"rljob": size, "bare program": size})
        stack.enter_context(ours)
        runners = [
            Runner(group=ours, side=labels["read"], label=labels[way], way=way)
            for labels in (OURS, BARE)
            for way in labels
        ]
        for number in units:
            hosts = {"TransferQueue": {"units": number}}
            if number == units[0]:
                hosts |= {"Ray actor": {}, OBJECTS: {}}
            group = Group(str(programs / "python"), hosts, ray=OBJECT_STORE_BYTES)
            stack.enter_context(group)
            for side in hosts:
                label = queue(number) if side == "TransferQueue" else side
                runners.append(Runner(group=group, side=side, label=label, way="read"))
        yield runners


def measure(runners: Sequence[Runner], payloads: Sequence[Payload], repetitions: int) -> Taken:
    """All figures of all sides, in turns; the first turn warms up and does not count."""
    taken: Taken = {}

    for turn in range(repetitions + 1):
        figures: Taken = {}
        for payload in payloads:
            for runner in runners:
                _take_large(figures, runner, payload)
        for runner in runners:
            if runner.label not in BARE.values():
                _take_small(figures, runner)
        seconds = round_trips(ROUND_TRIPS)
        for figure in SMALL:
            fraction = 0.99 if figure.endswith("p99") else 0.5
            figures[figure, SOCKET] = [1e6 * quantile(seconds, fraction)]
        for key, values in figures.items() if turn else ():
            taken.setdefault(key, []).extend(values)
        print(f"turn {turn} of {repetitions}", flush=True)
    return taken


def _take_large(figures: Taken, runner: Runner, payload: Payload) -> None:
    whole = runner.whole(payload)
    figures[f"{payload.name}: put", runner.label] = [whole["put"]]
    figures[f"{payload.name}: get and read", runner.label] = [whole["get"]]
    rate = runner.stream(payload)
    figures[f"{payload.name}: producer to three states", runner.label] = [rate]


def _take_small(figures: Taken, runner: Runner) -> None:
    claims = runner.claims()
    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
        value = 1e6 * quantile(claims, fraction)
        figures[f"claim of 16 of 1024 rows, {name}", runner.label] = [value]
    puts, both = runner.singles()
    name = "put of one row of 512 tokens, p50"
    figures[name, runner.label] = [1e6 * quantile(puts, 0.5)]
    name = "claim and get of one row of 512 tokens, p50"
    figures[name, runner.label] = [1e6 * quantile(both, 0.5)]


def compare(taken: Taken) -> list[Result]:
    """One result a figure; where our two ways of reading differ, one for each."""
    results = []
    for figure in dict.fromkeys(figure for figure, _ in taken):
        sides = {side: values for (name, side), values in taken.items() if name == figure}
        ours = {way: sides.pop(side) for way, side in OURS.items()}
        large = ":" in figure
        if figure.endswith("put") or figure.startswith(("put", "claim of")):
            del ours["view"]
        for way, values in ours.items():
            peers = {side: own for side, own in sides.items() if side != BARE[_other(way)]}
            results.append(
                summarize(
                    figure + OURS[way].removeprefix("rljob"),
                    ours=values,
                    peers=peers,
                    unit="MB/s" if large else "µs",
                    better="higher" if large else "lower",
                    targets=targets(figure, way, peers),
                )
            )
    return results


def _other(way: str) -> str:
    return "view" if way == "read" else "read"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="26 MB a payload, two repetitions")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--units", type=int, nargs="+", help="TransferQueue's storage units")
    parser.add_argument("--repetitions", type=int)
    options = parser.parse_args()
    units = options.units or ([1] if options.quick else [1, 2])
    repetitions = options.repetitions or (2 if options.quick else 5)
    with open_runners(units) as runners:
        taken = measure(runners, QUICK if options.quick else LARGE, repetitions)
    report(compare(taken), packages=["rljob", "numpy", "msgspec"], file=options.json)


if __name__ == "__main__":
    main()
