"""Random histories of stores and ledgers: claims, crashes, late writes, delayed broadcasts.

The servers add only sockets to these two classes, so what holds here holds for the protocol.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stored_columns import stored
from stored_rows import Head, bytes_of, live_uids, new_rows

from rljob_runtime.dock.clients.claimed import decode_rows
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.controller.batch_ledger import BatchLedger
from rljob_runtime.dock.controller.claims import ClaimGrant, ClaimRequest
from rljob_runtime.dock.controller.ledger import ControllerLedger
from rljob_runtime.dock.controller.part import GONE, LACKING, LEASED, READY, UNKNOWN, BatchShard
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.warehouse.notices import notices_for, snapshot_for
from rljob_runtime.dock.warehouse.slabs import WORD_BYTES, NoRoom
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.frames import pack_value, read
from rljob_runtime.dock.wire.messages import Notices, Snapshot
from rljob_runtime.errors import DockFull, DockLost, DockRefused

GRAPH = StateGraph(
    states=(
        State(name="generate", needs=("prompt",), writes=("response", "logprobs")),
        State(name="reward", needs=("response",), writes=("reward",)),
        State(name="update", needs=("logprobs", "reward")),
    )
)
STATES = GRAPH.names
WAREHOUSES = 2
LEASE_SECONDS = 10.0
OWNERS = ("a", "b", "c")


@dataclass
class Put:
    """One batch as it was put."""

    name: str
    total: int
    states: tuple[str, ...]
    groups: dict[int, list[Head]]


@dataclass
class Held:
    """A claim that a worker has not finished; it may be stale."""

    state: str
    grant: ClaimGrant
    uids: list[str] = field(default_factory=list)


def wire(message: Notices | Snapshot) -> Notices | Snapshot:
    return read(type(message), pack_value(message))


def left_of(batch: BatchLedger) -> list[str]:
    parts = batch.shards.values()
    return [uid for part in parts for uid in part.uids(part.all_present())]


class Dock(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ids = itertools.count(1)
        self.puts: dict[str, Put] = {}
        self.held: list[Held] = []
        self.stored: dict[tuple[str, str], str] = {}
        """(row, state) -> lease whose write counted; forgotten when a warehouse loses the row."""
        self.queues: dict[tuple[int, str], deque[Notices | Snapshot]] = {}

    @initialize(
        capacity=st.sampled_from([1 << 20, 1 << 20, 12_000]),
        eager=st.booleans(),
        groups=st.integers(1, 4),
        samples=st.integers(1, 3),
    )
    def begin(self, capacity: int, eager: bool, groups: int, samples: int) -> None:
        """eager: broadcasts arrive at once, except where a rule holds them back."""
        self.capacity, self.eager = capacity, eager
        self.stores = [self.new_store() for _ in range(WAREHOUSES)]
        self.epochs = [f"w{i}" for i in range(WAREHOUSES)]
        self.ledgers = {state: self.new_ledger(state) for state in STATES}
        self.put(groups=groups, samples=samples, evaluation=False, part=groups)
        self.put(groups=samples, samples=groups, evaluation=True, part=samples)
        self.deliver_all()

    def new_store(self) -> WarehouseStore:
        return WarehouseStore(graph=GRAPH, capacity_bytes=self.capacity)

    def new_ledger(self, state: str) -> ControllerLedger:
        for w in range(WAREHOUSES):
            self.subscribe(w, state)
        return ControllerLedger(
            state=state,
            needs=frozenset(GRAPH.state(state).needs),
            lease_seconds=LEASE_SECONDS,
            epoch=f"c{next(self.ids)}",
            num_warehouses=WAREHOUSES,
        )

    def subscribe(self, w: int, state: str) -> None:
        needs = frozenset(GRAPH.state(state).needs)
        store, epoch = self.stores[w], self.epochs[w]
        snapshot = snapshot_for(store.batches.values(), state=state, needs=needs, epoch=epoch)
        self.queues[w, state] = deque([wire(snapshot)])

    def broadcast(self, w: int) -> None:
        notices = self.stores[w].take_notices()
        for state in STATES:
            needs = frozenset(GRAPH.state(state).needs)
            if notices:
                message = wire(notices_for(notices, state=state, needs=needs))
                self.queues[w, state].append(message)
        if self.eager:
            self.deliver_all()

    def deliver_one(self, w: int, state: str) -> None:
        told = self.queues[w, state].popleft()
        if isinstance(told, Snapshot):
            self.ledgers[state].apply_snapshot(w, told.epoch, told.batches, told.rows, self.now)
        else:
            self.ledgers[state].apply(w, told)

    def put_groups(self, put: Put, groups: Sequence[int]) -> None:
        """As the client does: each group to its warehouse, in one message a warehouse."""
        for w in range(WAREHOUSES):
            mine = [g for g in groups if g % WAREHOUSES == w]
            heads = [head for g in mine for head in put.groups[g]]
            prompts = [np.full(g + 1, g, dtype=np.int32) for g in mine]
            if not heads:
                continue
            try:
                self.stores[w].put_rows(
                    put.name,
                    total=put.total,
                    states=put.states,
                    rows=new_rows(heads),
                    columns={},
                    group_columns={"prompt": stored(Ragged.from_rows(prompts))},
                )
            except (NoRoom, DockFull):
                continue
            self.broadcast(w)

    @precondition(lambda self: len(self.puts) < 4)
    @rule(
        groups=st.integers(1, 4),
        samples=st.integers(1, 3),
        evaluation=st.booleans(),
        part=st.integers(0, 4),
    )
    def put(self, groups: int, samples: int, evaluation: bool, part: int) -> None:
        name = f"b{len(self.puts)}"
        states = STATES[:2] if evaluation else STATES
        heads = {
            g: [
                Head(
                    uid=f"{name}/{g}/{s}",
                    group=f"{name}/{g}",
                    group_index=g,
                    group_size=samples,
                    sample=s,
                    version=0,
                    reserve_bytes=100 * (g % 3),
                )
                for s in range(samples)
            ]
            for g in range(groups)
        }
        put = Put(name, groups * samples, states, heads)
        self.puts[name] = put
        self.put_groups(put, range(min(part, groups)))

    @precondition(lambda self: self.puts)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        put = self.puts[data.draw(st.sampled_from(sorted(self.puts)))]
        self.put_groups(put, data.draw(st.lists(st.sampled_from(sorted(put.groups)), unique=True)))

    @rule()
    def hold_broadcasts_back(self) -> None:
        self.eager = not self.eager

    @rule(data=st.data(), count=st.integers(1, 5))
    def deliver(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            full = sorted(key for key, queue in self.queues.items() if queue)
            if full:
                self.deliver_one(*data.draw(st.sampled_from(full)))

    @precondition(lambda self: self.puts)
    @rule(
        data=st.data(),
        state=st.sampled_from(STATES),
        owner=st.sampled_from(OWNERS),
        limit=st.none() | st.integers(1, 5),
        kind=st.sampled_from(["rows", "groups", "share"]),
    )
    def claim(
        self, data: st.DataObject, state: str, owner: str, limit: int | None, kind: str
    ) -> None:
        name = data.draw(st.sampled_from(sorted(self.puts)))
        share = Share(data.draw(st.integers(0, 1)), 2) if kind == "share" else None
        request = ClaimRequest(
            owner=owner,
            session=owner,
            request=str(next(self.ids)),
            batch=name,
            limit=None if share else limit,
            whole_groups=kind == "groups",
            share=share,
        )
        self.take(state, request)

    def take(self, state: str, request: ClaimRequest) -> ClaimGrant | None:
        ledger = self.ledgers[state]
        try:
            grant = ledger.claim(request, self.now)
        except DockLost:
            return None
        if grant is None or grant.rows is None:
            return grant
        assert ledger.claim(request, self.now) is grant, "a repeated request gets another answer"
        self.check_grant(state, request, grant)
        self.held.append(Held(state, grant, [*grant.uids]))
        return grant

    def check_grant(self, state: str, request: ClaimRequest, grant: ClaimGrant) -> None:
        put = self.puts[request.batch]
        assert grant.rows is not None
        rows = decode_rows(grant.rows, grant.lease)
        uids = {row.uid for row in rows}
        assert len(uids) == len(rows)
        assert state in put.states
        groups = {row.group_index for row in rows}
        left = set(left_of(self.ledgers[state].batches[put.name]))
        for row in rows:
            (head,) = [head for head in put.groups[row.group_index] if head.uid == row.uid]
            assert (row.group, row.sample) == (head.group, head.sample)
            assert row.warehouse == row.group_index % WAREHOUSES
            assert (row.group_size, row.batch) == (head.group_size, put.name)
            assert row.lengths.keys() == set(GRAPH.state(state).needs)
            assert row.lengths.get("prompt", row.group_index + 1) == row.group_index + 1
        if request.share is not None or request.whole_groups:
            for g in groups:
                assert {head.uid for head in put.groups[g]} & left <= uids, "a group was cut"
        if request.share is not None:
            rank, of, _ = request.share
            expected = {
                head.uid for g, heads in put.groups.items() if g % of == rank for head in heads
            }
            assert uids == expected & left
            order = [(row.group_index, row.sample) for row in rows]
            assert order == sorted(order)
        if request.limit is not None and not request.whole_groups:
            assert len(uids) <= request.limit

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keep=st.booleans())
    def write(self, data: st.DataObject, keep: bool) -> None:
        held = data.draw(st.sampled_from(self.held))
        uids = data.draw(st.lists(st.sampled_from(held.uids), unique=True, min_size=1))
        self.finish(held, uids)
        if not keep:
            held.uids = [uid for uid in held.uids if uid not in uids]
            self.held = [h for h in self.held if h.uids]

    def finish(self, held: Held, uids: Sequence[str]) -> bool:
        """Write a claim's rows; False when there was no room."""
        stamp = int(held.grant.lease.rpartition("-")[2])
        for w in range(WAREHOUSES):
            mine = [uid for uid in uids if int(uid.split("/")[1]) % WAREHOUSES == w]
            names = GRAPH.state(held.state).writes
            columns = {
                name: stored(
                    Ragged.from_rows([np.full(stamp % 5, stamp, dtype=np.int64) for _ in mine])
                )
                for name in names
            }
            before = dict(self.stored)
            if not mine:
                continue
            try:
                written = self.stores[w].write(
                    state=held.state,
                    lease=held.grant.lease,
                    uids=mine,
                    columns=columns if mine else {},
                    version=stamp,
                )
            except DockLost:
                assert any((uid, "put") not in self.stored for uid in mine) or self.lost_some
                continue
            except NoRoom:
                assert before == self.stored
                return False
            fresh = [uid for uid in mine if uid not in written.duplicates]
            assert written.stored == len(fresh)
            for uid in fresh:
                assert (uid, held.state) not in self.stored, "a row was written twice"
                self.stored[uid, held.state] = held.grant.lease
            for uid in written.duplicates:
                first = self.stored[uid, held.state]
                assert (uid in written.foreign) == (first != held.grant.lease)
            self.broadcast(w)
        return True

    lost_some = False

    @rule(seconds=st.sampled_from([0.5, 5.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for ledger in self.ledgers.values():
            ledger.expire(self.now)
            deadline = ledger.leases.next_deadline()
            assert deadline is None or deadline > self.now

    @rule()
    def the_next_state_works(self) -> None:
        """A worker claims what is ready first and writes it; keeps histories moving."""
        for state in STATES:
            for put in self.puts.values():
                request = replace(self.ask(put), limit=2)
                grant = self.take(state, request)
                if grant is not None and grant.rows:
                    self.finish(self.held[-1], self.held[-1].uids)
                    return

    @rule(state=st.sampled_from(STATES), owner=st.sampled_from(OWNERS), named=st.booleans())
    def worker_dies(self, state: str, owner: str, named: bool) -> None:
        self.ledgers[state].owner_gone(owner, owner if named else None)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), back=st.booleans())
    def renew_or_give_back(self, data: st.DataObject, back: bool) -> None:
        held = data.draw(st.sampled_from(self.held))
        ledger = self.ledgers[held.state]
        if back:
            ledger.give_back(held.grant.lease, held.uids)
            return
        lost = ledger.renew(
            held.grant.lease, owner="a", session="a", uids=held.uids, time_s=self.now
        )
        lease = ledger.leases.get(held.grant.lease)
        kept = set() if lease is None else set(lease.uids())
        assert set(held.uids) - set(lost) <= kept or not ledger.synced

    @rule(state=st.sampled_from(STATES), announced=st.booleans())
    def controller_restarts(self, state: str, announced: bool) -> None:
        """announced: the workers tell the new one what they hold, before it has heard warehouses."""
        self.ledgers[state] = self.new_ledger(state)
        for held in [held for held in self.held if held.state == state and announced]:
            self.ledgers[state].renew(
                held.grant.lease, owner="a", session="a", uids=held.uids, time_s=self.now
            )

    @rule(w=st.integers(0, WAREHOUSES - 1), state=st.sampled_from(STATES))
    def link_breaks(self, w: int, state: str) -> None:
        self.subscribe(w, state)

    @rule(w=st.integers(0, WAREHOUSES - 1))
    def warehouse_restarts(self, w: int) -> None:
        self.lost_some = True
        self.stores[w] = self.new_store()
        self.epochs[w] = f"w{next(self.ids)}"
        for uid, state in list(self.stored):
            if int(uid.split("/")[1]) % WAREHOUSES == w:
                del self.stored[uid, state]
        for state in STATES:
            self.subscribe(w, state)

    @invariant()
    def a_row_has_one_lease(self) -> None:
        for ledger in getattr(self, "ledgers", {}).values():
            leased = [uid for lease in ledger.leases.values() for uid in lease.uids()]
            assert len(leased) == len(set(leased))
            for lease in ledger.leases.values():
                assert lease.num_rows == len(lease.uids()) > 0
            marked = 0
            for batch in ledger.batches.values():
                for part in batch.shards.values():
                    self.check_part(part)
                    marked += int((part.rows["status"] == LEASED).sum())
            assert marked == len(leased)

    def check_part(self, part: BatchShard) -> None:
        """Counts are those of the rows; who has a lease is leased, and nobody else."""
        status = part.rows["status"]
        assert part.num_rows == (status != GONE).sum()
        assert ((part.rows["lease"] != 0) == (status == LEASED)).all()
        lengths = [part.lengths(name) for name in part.needs]
        whole = np.all([own != UNKNOWN for own in lengths], axis=0)
        assert (whole | (status == LACKING) | (status == GONE)).all()
        assert not (whole & (status == LACKING)).any()
        for place, (first, size) in enumerate(
            zip(part.groups["first"], part.groups["size"], strict=True)
        ):
            own = status[first : first + size]
            assert part.groups["left"][place] == (own != GONE).sum()
            assert part.groups["ready"][place] == (own == READY).sum()

    @invariant()
    def bytes_are_bounded_and_right(self) -> None:
        for store in getattr(self, "stores", []):
            charged = taken = columns = 0
            for record in store.batches.values():
                live = record.live_rows()
                charged += int(record.rows["charge"][live].sum())
                left = record.groups["left"] > 0
                charged += int(record.groups["charge"][left].sum())
                assert record.live == len(live)
                assert int(record.groups["left"].sum()) == len(live)
                for _, _, run in record.columns.live_runs():
                    columns += len(run.slab.columns)
                    for name in run.slab.columns:
                        taken += sum(end - start for start, end in run.spans(name))
            assert store.charged_bytes == charged <= store.capacity_bytes
            store.slabs.reclaim()
            free = store.slabs.arena.free_bytes
            assert 0 <= store.slabs.arena.num_bytes - free - taken < WORD_BYTES * columns + 1

    @invariant()
    def columns_of_one_write_stay_together(self) -> None:
        for store in getattr(self, "stores", []):
            for uid in live_uids(store):
                for state in STATES[:2]:
                    lease = self.stored.get((uid, state))
                    names = GRAPH.state(state).writes
                    if lease is None:
                        for name in names:
                            self.lacks(store, uid, name)
                        continue
                    stamp = int(lease.rpartition("-")[2])
                    expected = np.full(stamp % 5, stamp, dtype=np.int64).tobytes()
                    for found in store.read([uid], names):
                        assert bytes_of(store, found) == [expected]

    def lacks(self, store: WarehouseStore, uid: str, name: str) -> None:
        try:
            store.read([uid], [name])
        except DockRefused:
            return
        raise AssertionError(f"{uid} has {name}, which nobody wrote")

    def teardown(self) -> None:
        """Whatever happened: put what is lost, and every row passes every state once."""
        if not hasattr(self, "stores"):
            return
        for _ in range(12 * len(self.puts) + 1):
            self.settle()
            if all(self.done(put, state) for put in self.puts.values() for state in put.states):
                break
        for put in self.puts.values():
            for state in STATES:
                assert self.done(put, state), self.ledgers[state].explain(self.ask(put), 1.0)
        for store in self.stores:
            assert not store.num_rows and store.charged_bytes == 0
            assert store.slabs.arena.holes() == [(0, store.slabs.arena.num_bytes)]
        for ledger in self.ledgers.values():
            assert not ledger.num_rows and not ledger.leases

    def ask(self, put: Put) -> ClaimRequest:
        request = str(next(self.ids))
        return ClaimRequest(owner="z", session="z", request=request, batch=put.name)

    def done(self, put: Put, state: str) -> bool:
        grant = self.ledgers[state].claim(self.ask(put), self.now)
        return grant is not None and grant.done

    def settle(self) -> None:
        self.pass_time(100.0)
        for put in self.puts.values():
            for g in put.groups:
                self.put_groups(put, [g])
        self.deliver_all()
        for state in STATES:
            for put in self.puts.values():
                while True:
                    grant = self.take(state, self.ask(put))
                    if grant is None or not grant.rows:
                        break
                    held = self.held[-1]
                    if not self.finish(held, held.uids):
                        break
                    self.deliver_all()

    def deliver_all(self) -> None:
        for key, queue in self.queues.items():
            while queue:
                self.deliver_one(*key)


TestDock = Dock.TestCase
TestDock.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
