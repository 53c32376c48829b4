"""The transfer dock beside TransferQueue, a replay buffer in a Ray actor, and Ray's object store.

The same samples, a producer and three consumers in processes of their own, all sides in turns; a read
counts once every byte was summed. Beside them what the machine does by itself: a copy in memory, a
round trip over a Unix socket. TransferQueue gets its best case, see `peers/transfer_queue.py`.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.dock.sample_flow.machine import Copying, round_trips
from benchmarks.dock.sample_flow.measure import Runner
from benchmarks.dock.sample_flow.payload import COLUMNS, Payload, num_bytes
from benchmarks.dock.sample_flow.processes import Group
from benchmarks.support.environment import QUEUE, make_environment
from benchmarks.support.results import Result, quantile, report, summarize

CAPACITY_BYTES = 768 << 20
OBJECT_STORE_BYTES = 2 << 30
OURS = {"read": "rljob", "view": "rljob, in place"}
COPY, SOCKET = "copy in memory", "Unix socket"
LARGE = (Payload(256, 4096), Payload(1024, 8192), Payload(1024, 8192, ragged=True))
QUICK = (Payload(256, 4096), Payload(256, 4096, ragged=True))
ROUND_TRIPS = 1000
LIMITS = {"put of one row of 512 tokens, p50": 150.0}
Taken = dict[tuple[str, str], list[float]]
"""Values of all repetitions by figure and side."""


def targets(figure: str, peers: Iterable[str]) -> dict[str, float]:
    """Gains that we want over some of the peers."""
    if figure.endswith("to three states"):
        ragged = "ragged" in figure
        queues = [peer for peer in peers if peer.startswith("TransferQueue")]
        return dict.fromkeys(queues, 20.0 if ragged else 15.0) | {COPY: 0.5 if ragged else 0.7}
    if figure.startswith("claim of"):
        return {SOCKET: 1 / 20 if figure.endswith("p99") else 1 / 4}
    return {}


def queue(units: int) -> str:
    """TransferQueue's name with so many storage units."""
    return f"TransferQueue, {units} unit{'s' if units > 1 else ''}"


@contextmanager
def open_runners(units: Sequence[int]) -> Iterator[list[Runner]]:
    """Every side, ready to measure. units: TransferQueue's storage units, each in a Ray of its own."""
    programs = make_environment("transferqueue", QUEUE)
    with ExitStack() as stack:
        ours = Group(sys.executable, {"rljob": {"capacity": CAPACITY_BYTES}})
        stack.enter_context(ours)
        runners = [Runner(group=ours, side="rljob", label=OURS[way], way=way) for way in OURS]
        for number in units:
            hosts = {"TransferQueue": {"units": number}}
            if number == units[0]:
                hosts |= {"Ray actor": {}, "Ray object store": {}}
            group = Group(str(programs / "python"), hosts, ray=OBJECT_STORE_BYTES)
            stack.enter_context(group)
            for side in hosts:
                label = queue(number) if side == "TransferQueue" else side
                runners.append(Runner(group=group, side=side, label=label, way="read"))
        yield runners


def measure(runners: Sequence[Runner], payloads: Sequence[Payload], repetitions: int) -> Taken:
    """All figures of all sides, in turns; the first turn warms up and does not count."""
    taken: Taken = {}
    copies = {payload: Copying(num_bytes(payload.make(), COLUMNS)) for payload in payloads}

    for turn in range(repetitions + 1):
        figures: Taken = {}
        for payload in payloads:
            for runner in runners:
                _take_large(figures, runner, payload)
            for figure in ("put", "get and read", "producer to three states"):
                figures[f"{payload.name}: {figure}", COPY] = [copies[payload].rate()]
        for runner in runners:
            _take_small(figures, runner)
        seconds = round_trips(ROUND_TRIPS)
        for name, fraction in (("p50", 0.5), ("p99", 0.99)):
            value = 1e6 * quantile(seconds, fraction)
            figures[f"claim of 16 of 1024 rows, {name}", SOCKET] = [value]
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
        ours = {side: sides.pop(side) for side in OURS.values()}
        large = ":" in figure
        if figure.endswith("put") or figure.startswith(("put", "claim of")):
            del ours[OURS["view"]]
        for side, values in ours.items():
            results.append(
                summarize(
                    figure + side.removeprefix("rljob"),
                    ours=values,
                    peers=sides,
                    unit="MB/s" if large else "µs",
                    better="higher" if large else "lower",
                    targets=targets(figure, sides),
                    limit=LIMITS.get(figure),
                )
            )
    return results


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
