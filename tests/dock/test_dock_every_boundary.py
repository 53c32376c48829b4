"""Somebody dies at every message boundary of a small pipeline; each sample still counts exactly once.

A first run counts the requests that each server gets. Then one run for each of them: the victim dies
before the request is delivered, or after it was carried out and before its answer is delivered.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from mortal_dock import Boundary, MortalDock

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.dock.stats import DockStats
from rljob_runtime.dock.wire.frames import FrameKind
from rljob_runtime.errors import DockLost

GROUPS, SAMPLES = 2, 2
TOTAL = GROUPS * SAMPLES
STATES = ("generate", "reward", "update")
STAGES = ("feed", *STATES)
RUN_SECONDS = 30.0
AT_ONCE = 4
"""Runs beside each other: most of the time each of them waits."""


class WorkerDied(Exception):
    """In place of SIGKILL: raised where the worker would go on."""


@dataclass
class Pipeline:
    """A feeder and a worker a state, one after the other, so that requests come in one order.

    worked: how often a row was worked on, by (state, place). counted: samples of the update. dead: the
    stage whose worker is dying. died_with: samples that it acknowledged last. marks: requests that
    each server had got at the beginning of each stage.
    """

    dock: MortalDock
    attempt: int = 0
    worked: Counter[tuple[str, str]] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    clients: dict[str, DockClient] = field(default_factory=dict)
    dead: str = ""
    acknowledging: set[str] = field(default_factory=set)
    died_with: set[str] = field(default_factory=set)
    marks: list[dict[str, int]] = field(default_factory=list)

    @property
    def batch(self) -> str:
        return f"t{self.attempt}"

    def run(self) -> None:
        """To the end; what is lost on the way starts over under another name, as the driver does."""
        self.deadline = time.monotonic() + RUN_SECONDS
        stage = 0
        while stage < len(STAGES):
            assert time.monotonic() < self.deadline, f"hangs after {self.losses}"
            self.marks.append({role: len(kinds) for role, kinds in self.dock.requests().items()})
            try:
                self.put() if stage == 0 else self.work(STAGES[stage])
                stage += 1
            except WorkerDied:
                self.clients.pop(STAGES[stage]).close()
                self.dead, self.died_with = "", self.acknowledging
            except DockLost as error:
                self.losses.append(str(error))
                self.client("feed").drop_batch(self.batch)
                self.attempt += 1
                self.counted.clear()
                stage = 0
        self.marks.append({role: len(kinds) for role, kinds in self.dock.requests().items()})

    def put(self) -> None:
        rows = [
            NewRow(
                uid=f"{self.batch}/{g}/{s}",
                group=f"{self.batch}/{g}",
                group_index=g,
                group_columns={"prompt": np.full(g + 1, g, dtype=np.int32)},
            )
            for g in range(GROUPS)
            for s in range(SAMPLES)
        ]
        feed = self.client("feed")
        feed.put_rows(self.batch, rows, total=TOTAL)
        while self.losses and not told(feed.stats()):
            assert time.monotonic() < self.deadline, (
                "controllers were not told of what was put again"
            )
            time.sleep(0.01)

    def work(self, state: str) -> None:
        """Until the state is done with the batch."""
        while not self.step(state):
            assert time.monotonic() < self.deadline, f"{state} hangs after {self.losses}"

    def step(self, state: str) -> bool:
        """Claim, read and write once; True when the state is done."""
        client = self.client(state)
        claim = client.claim(self.batch, share=(0, 1), timeout_seconds=RUN_SECONDS / 2)
        if claim.done:
            return True
        self.worked.update((state, place(row)) for row in claim.rows)
        try:
            self.finish(state, client, claim.rows)
        except DockLost:
            client.give_back(claim.rows)
            raise
        return False

    def finish(self, state: str, client: DockClient, rows: tuple[RowMeta, ...]) -> None:
        """Read what the state needs of the rows, and write or count them."""
        needs = {"generate": ["prompt"], "reward": ["response"], "update": ["response", "reward"]}
        found = client.read(rows, needs[state])
        if state == "generate":
            values = {name: response_of(rows, kind) for name, kind in COLUMNS.items()}
            client.write(rows, values, version=1)
        elif state == "reward":
            assert_responses(rows, found["response"])
            sums = [np.asarray([row.sum()], dtype=np.float32) for row in found["response"].rows()]
            client.write(rows, {"reward": Ragged.from_rows(sums)})
        else:
            assert_responses(rows, found["response"])
            expected = [float(row.sum()) for row in found["response"].rows()]
            assert found["reward"].values.tolist() == expected
            self.acknowledging = {place(row) for row in rows}
            client.acknowledge(rows)
            self.counted.update(place(row) for row in rows)

    def client(self, state: str) -> DockClient:
        if state not in self.clients:
            self.clients[state] = DockClient(
                lambda: self.address_for(state),
                state=state,
                owner=state,
                timeout_seconds=RUN_SECONDS / 2,
            )
            self.dock.clients.append(self.clients[state])
        return self.clients[state]

    def address_for(self, state: str) -> DockAddress:
        """Asked at each reconnection, which a dead worker does not live to see."""
        renews = threading.current_thread().name == "dock-leases"
        if self.dead == state and not renews:
            raise WorkerDied(state)
        return self.dock.address


COLUMNS = {"response": np.int32, "logprobs": np.float32}


def told(stats: DockStats) -> bool:
    """Whether the controllers know of all rows that are left: a state that was done may be asked again."""
    known = {state: stats.servers[f"controller/{state}"]["rows"] for state in STATES}
    return known == stats.unacknowledged


def place(row: RowMeta) -> str:
    """The row's place in its batch, the same in every attempt."""
    return row.uid.partition("/")[2]


def response_of(rows: tuple[RowMeta, ...], kind: type) -> Ragged:
    """The same for the same place, as from the same seed."""
    cells = [np.full(2 + r.sample, 10 * r.group_index + r.sample, dtype=kind) for r in rows]
    return Ragged.from_rows(cells)


def assert_responses(rows: tuple[RowMeta, ...], found: Ragged) -> None:
    assert np.array_equal(found.values, response_of(rows, np.int32).values)
    assert np.array_equal(found.lengths, response_of(rows, np.int32).lengths)


@contextlib.contextmanager
def pipeline(graph, boundary: Boundary | None, replicas: int) -> Iterator[Pipeline]:
    with MortalDock(graph=graph, replicas=replicas) as dock:
        with dock.client("watch", timeout_seconds=RUN_SECONDS) as watcher:
            while replicas == 2 and not all(
                server.get("replicated", True) for server in watcher.stats().servers.values()
            ):
                time.sleep(0.01)
        for gate in dock.gates.values():
            gate.kinds.clear()
        dock.boundary = boundary
        yield Pipeline(dock)


def quiet_run(graph, replicas: int) -> Pipeline:
    """One in which nobody dies."""
    with pipeline(graph, None, replicas) as quiet:
        quiet.run()
    return quiet


def boundaries(graph, replicas: int, kind: str) -> list[tuple[Boundary, FrameKind]]:
    """Deaths of each server of that kind at each of its requests."""
    return [
        (Boundary(role, number, after, victim=role), request)
        for role, kinds in quiet_run(graph, replicas).dock.requests().items()
        if role.startswith(kind)
        for number, request in enumerate(kinds, 1)
        for after in (False, True)
    ]


def at_each(found: list[Boundary], check: Callable[[Boundary], object]) -> list[object]:
    """Check each of them, several beside each other; the first failure is raised."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(check, found))


def assert_counted_once(run: Pipeline, boundary: Boundary) -> None:
    places = {f"{g}/{s}" for g in range(GROUPS) for s in range(SAMPLES)}
    assert run.dock.struck, f"{boundary} was never reached"
    assert run.counted == dict.fromkeys(places, 1), boundary
    with run.dock.client("watch", timeout_seconds=RUN_SECONDS) as watcher:
        watcher.assert_empty()
    leased = [run.dock.server(f"controller/{state}").ledger.leases for state in STATES]
    deadline = time.monotonic() + 5
    while any(leased) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(leased), f"rows are still leased after {boundary}"


def test_a_controller_that_dies_at_any_boundary_costs_nothing(graph) -> None:
    found = [boundary for boundary, _ in boundaries(graph, 1, "controller")]

    def check(boundary: Boundary) -> None:
        with pipeline(graph, boundary, 1) as run:
            run.run()
            assert_counted_once(run, boundary)
        assert run.losses == [], boundary
        assert set(run.worked.values()) == {1}, boundary

    at_each(found, check)
    assert len(found) == 2 * 2 * len(STATES)


def test_a_warehouse_of_two_copies_that_dies_at_any_boundary_loses_nothing(graph) -> None:
    found = boundaries(graph, 2, "warehouse")
    other = {"warehouse/0": "warehouse/1", "warehouse/1": "warehouse/0"}
    forwards = [boundary for boundary, kind in found if kind is FrameKind.FORWARD]
    primaries = [replace(boundary, victim=other[boundary.role]) for boundary in forwards]

    def check(boundary: Boundary) -> None:
        with pipeline(graph, boundary, 2) as run:
            run.run()
            assert_counted_once(run, boundary)
        assert run.losses == [], boundary
        assert set(run.worked.values()) == {1}, boundary

    at_each([boundary for boundary, _ in found] + primaries, check)
    assert len(forwards) == 2 * 2 * len(STAGES)


def test_rows_of_a_warehouse_that_dies_at_any_boundary_are_made_again_the_same(graph) -> None:
    found = [boundary for boundary, _ in boundaries(graph, 1, "warehouse")]

    def check(boundary: Boundary) -> bool:
        with pipeline(graph, boundary, 1) as run:
            run.run()
            assert_counted_once(run, boundary)
        return bool(run.losses)

    assert any(at_each(found, check))


def test_a_worker_that_dies_at_any_boundary_is_replaced(graph) -> None:
    quiet = quiet_run(graph, 1)
    found = [
        Boundary(role, number, after, victim=stage)
        for place, stage in enumerate(STAGES)
        for role in quiet.dock.roles
        for number in range(quiet.marks[place][role] + 1, quiet.marks[place + 1][role] + 1)
        for after in (False, True)
    ]

    def check(boundary: Boundary) -> None:
        with pipeline(graph, boundary, 1) as run:
            run.dock.on_death = lambda stage: setattr(run, "dead", stage)
            run.run()
            for missing in run.died_with - set(run.counted):
                run.counted[missing] += 1
            assert_counted_once(run, boundary)
        assert run.losses == [], boundary

    at_each(found, check)
    assert {boundary.victim for boundary in found} == set(STAGES)
