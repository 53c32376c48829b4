"""The dock of a simulated run: the controllers' own ledgers, and warehouses that keep lengths in place of
bytes.

Claims are decided by `ControllerLedger`, as in the controllers' processes; what a warehouse would broadcast
is told to the ledgers in its own messages. Called by what stands for workers.
"""

# n rows of a batch by their places, groups in order and samples in theirs; G groups

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.controller.claims import ClaimGrant, ClaimRequest
from rljob_runtime.dock.controller.ledger import ControllerLedger
from rljob_runtime.dock.controller.part import UNKNOWN
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import pack_names, select_names
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.stats import RowCounts
from rljob_runtime.dock.warehouse.batch_record import ROW_BYTES
from rljob_runtime.dock.warehouse.notices import Notice, notices_for
from rljob_runtime.dock.wire.messages import (
    OF_ROWS,
    AckNotice,
    BatchNotice,
    ColumnNotice,
    Notices,
    RowsNotice,
    pack_numbers,
    unpack_numbers,
)
from rljob_runtime.errors import DockError, DockLost
from rljob_runtime.simulate.virtual_clock import VirtualCall, VirtualClock

BROADCAST_SECONDS = 0.02
"""A warehouse collects what it broadcasts for so long."""
NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Rows of a batch that were given, in order. index_n: numbers of their groups. version_n: of the weights
    that made them. lengths: of the columns that the state needs."""

    batch: str
    rows_n: Array
    index_n: Array
    sample_n: Array
    version_n: Array
    lengths: Mapping[str, Array]
    done: bool

    @property
    def count(self) -> int:
        """How many."""
        return len(self.rows_n)

    @property
    def prompt_n(self) -> Array:
        """Tokens of each row's prompt."""
        return self.lengths["prompt"]


class Rows:
    """A batch. total: rows that it will have. first_of_G: place of each group's first row, by the group's
    number; -1 where it was not put. acks_n: states that have acknowledged each row. bytes_n: that are charged
    for it. left: rows that are not gone."""

    def __init__(self, name: str, total: int, states: tuple[str, ...], warehouses: int) -> None:
        self.name, self.total, self.states = name, total, states
        self.dropped = False
        self.known = self.left = 0
        self.first_of_G = np.zeros(0, dtype=np.int64)
        self.warehouse_n = self.number_n = self.version_n = self.acks_n = self.bytes_n = NO_ROWS
        self.lengths: dict[str, Array] = {}
        self._counts = np.zeros(warehouses, dtype=np.int64)

    def add(
        self,
        indexes_G: Array,
        samples: int,
        *,
        version: int,
        num_bytes: int,
        lengths: Mapping[str, Array],
    ) -> Array:
        """New rows of whole groups, none of which is known; their places."""
        first, count = self.known, len(indexes_G) * samples
        room = max(len(self.first_of_G), int(indexes_G.max()) + 1)
        self.first_of_G = _longer(self.first_of_G, room, -1)
        self.first_of_G[indexes_G] = first + np.arange(len(indexes_G)) * samples
        warehouse_n = np.repeat(indexes_G % len(self._counts), samples)
        order = np.argsort(warehouse_n, kind="stable")
        here = np.bincount(warehouse_n, minlength=len(self._counts))
        number_n = np.empty(count, dtype=np.int64)
        begins = here.cumsum() - here
        number_n[order] = np.arange(count) + np.repeat(self._counts - begins, here)
        self._counts += here
        self.known += count
        self.left += count
        self.warehouse_n = np.concatenate([self.warehouse_n, warehouse_n])
        self.number_n = np.concatenate([self.number_n, number_n])
        self.version_n = _longer(self.version_n, self.known, version)
        self.acks_n = _longer(self.acks_n, self.known, 0)
        self.bytes_n = _longer(self.bytes_n, self.known, num_bytes)
        for name in {**self.lengths, **lengths}:
            own = self.lengths.get(name, NO_ROWS)
            self.lengths[name] = _longer(own, self.known, UNKNOWN)
        for name, values in lengths.items():
            self.lengths[name][first:] = np.repeat(values, samples)
        return np.arange(first, self.known)


def _longer(values: Array, length: int, fill: int) -> Array:
    return np.concatenate([values, np.full(length - len(values), fill, dtype=np.int64)])


@dataclass(slots=True, kw_only=True)
class Parked:
    """A claim that waits. lacks: the state that it waits for, as its controller tells."""

    request: ClaimRequest
    call: VirtualCall
    since: float
    lacks: str


class SimulatedDock:
    """The dock of one run. held: bytes by warehouse; peaks: since they were asked for."""

    def __init__(
        self,
        clock: VirtualClock,
        graph: StateGraph,
        *,
        warehouses: int,
        lease_seconds: float,
        capacity_bytes: int,
    ) -> None:
        self._clock, self.graph = clock, graph
        self.num_warehouses, self.capacity_bytes = warehouses, capacity_bytes
        self._lease_seconds = lease_seconds
        self.ledgers: dict[str, ControllerLedger] = {}
        self.batches: dict[str, Rows] = {}
        self.held = np.zeros(warehouses, dtype=np.int64)
        self.peaks = np.zeros(warehouses, dtype=np.int64)
        self._parked: dict[str, deque[Parked]] = {}
        self._pending: dict[tuple[str, str, str], list[Array]] = {}
        self._telling = False
        self._requests = 0

    def add_controller(self, state: str) -> None:
        """It starts."""
        ledger = ControllerLedger(
            state=state,
            needs=frozenset(self.graph.state(state).needs),
            lease_seconds=self._lease_seconds,
            epoch=state,
            num_warehouses=self.num_warehouses,
        )
        for warehouse in range(self.num_warehouses):
            ledger.apply_snapshot(warehouse, f"{warehouse}-1", [], [], self._clock.seconds)
        self.ledgers[state] = ledger
        self._parked[state] = deque()

    def put(
        self,
        batch: str,
        *,
        total: int,
        states: Sequence[str] | None,
        version: int,
        indexes_G: Array,
        samples: int,
        lengths: Mapping[str, Array],
        reserve: int,
        names: Sequence[str],
        groups: Sequence[str],
    ) -> int:
        """New rows of whole groups: lengths of their columns, one a group each. Returns how many; again, it
        changes nothing. Raises DockLost for a batch that was dropped."""
        rows = self.batches.get(batch)
        if rows is None:
            passed = tuple(states or self.graph.names)
            rows = self.batches[batch] = Rows(batch, total, passed, self.num_warehouses)
            self._tell_batch(rows)
        if rows.dropped:
            raise DockLost(f"batch {batch} was dropped")
        known_G = (indexes_G < len(rows.first_of_G)).nonzero()[0]
        if len(known_G) and (rows.first_of_G[indexes_G[known_G]] >= 0).any():
            return 0
        places = rows.add(
            indexes_G, samples, version=version, num_bytes=ROW_BYTES + reserve, lengths=lengths
        )
        self._charge(rows, places, 1)
        self._tell_rows(rows, places, samples, indexes_G, names, groups)
        return len(places)

    def claim(
        self,
        state: str,
        batch: str,
        *,
        owner: str,
        limit: int | None = None,
        whole_groups: bool = False,
        share: Share | None = None,
        min_version: int | None = None,
    ) -> VirtualCall:
        """Ends with what the state's controller gives: `Claimed`, and by what state it was waited for so many
        seconds. Fails as a claim does."""
        self._requests += 1
        request = ClaimRequest(
            owner=owner,
            session=owner,
            request=str(self._requests),
            batch=batch,
            limit=limit,
            whole_groups=whole_groups,
            share=share,
            min_version=min_version,
        )
        call = VirtualCall()
        parked = Parked(request=request, call=call, since=self._clock.seconds, lacks="")
        if not self._answered(state, parked):
            ledger = self.ledgers[state]
            lacks = ledger.next_missing_columns(request)
            parked.lacks = (
                state if lacks is not None and not lacks else self.graph.first_writer(lacks or ())
            )
            self._parked[state].append(parked)
        return call

    def write(
        self,
        state: str,
        claimed: Claimed,
        columns: Mapping[str, Array],
        *,
        which: Array | slice = slice(None),
        version: int | None = None,
    ) -> None:
        """Columns of claimed rows, by their lengths, which acknowledges them. which: of the rows. Raises
        DockLost."""
        rows, own = self.batches.get(claimed.batch), claimed.rows_n[which]
        if rows is None or rows.dropped:
            raise DockLost(f"batch {claimed.batch} was dropped")
        if version is not None:
            rows.version_n[own] = version
        for name, lengths in columns.items():
            if name not in rows.lengths:
                rows.lengths[name] = np.full(rows.known, UNKNOWN, dtype=np.int64)
            rows.lengths[name][own] = lengths
            self._pending.setdefault((rows.name, "column", name), []).append(own)
        self._pending.setdefault((rows.name, "ack", state), []).append(own)
        rows.acks_n[own] += 1
        ended = own[rows.acks_n[own] == len(rows.states)]
        if len(ended):
            self._charge(rows, ended, -1)
            rows.left -= len(ended)
        if not self._telling:
            self._telling = True
            self._clock.after(BROADCAST_SECONDS, self._broadcast)

    def drop(self, batch: str) -> int:
        """Free the batch's rows for good; claims that wait for them end. Returns how many."""
        self._broadcast()
        rows, freed = self.batches.get(batch), 0
        if rows is None:
            rows = self.batches[batch] = Rows(batch, 0, (), self.num_warehouses)
        elif not rows.dropped:
            live = np.flatnonzero(rows.acks_n < len(rows.states))
            self._charge(rows, live, -1)
            freed = len(live)
        rows.dropped = True
        for ledger in self.ledgers.values():
            for warehouse in range(self.num_warehouses):
                ledger.apply(warehouse, Notices(drops=[batch]))
        self._answer_all()
        return freed

    def owner_gone(self, owner: str) -> None:
        """A worker has died: its rows go back, its claims wait no more."""
        for state, ledger in self.ledgers.items():
            ledger.owner_gone(owner)
            self._parked[state] = deque(p for p in self._parked[state] if p.request.owner != owner)
        self._answer_all()

    def counts(self) -> dict[str, RowCounts]:
        """Rows at each state, as its controller tells."""
        found = {}
        for state, ledger in self.ledgers.items():
            ready = sum(batch.num_ready for batch in ledger.batches.values())
            leased = sum(lease.num_rows for lease in ledger.leases.values())
            lacking = ledger.num_rows - ready - leased
            found[state] = RowCounts(lacking, ready, leased, ledger.acknowledged)
        return found

    def take_peak(self, warehouse: int) -> int:
        """Most bytes that it held since the last call."""
        peak, self.peaks[warehouse] = int(self.peaks[warehouse]), self.held[warehouse]
        return peak

    def _answered(self, state: str, parked: Parked) -> bool:
        try:
            grant = self.ledgers[state].claim(parked.request, self._clock.seconds)
        except DockError as error:
            parked.call.fail(error)
            return True
        if grant is None:
            return False
        waited = self._clock.seconds - parked.since
        waits = {parked.lacks: waited} if waited else {}
        parked.call.settle((self._claimed(parked.request.batch, grant), waits))
        return True

    def _claimed(self, batch: str, grant: ClaimGrant) -> Claimed:
        if grant.rows is None:
            none = dict.fromkeys(("rows_n", "index_n", "sample_n", "version_n"), NO_ROWS)
            return Claimed(batch=batch, lengths={}, done=grant.done, **none)
        told = unpack_numbers(grant.rows.numbers).reshape(
            len(OF_ROWS) + len(grant.rows.columns), -1
        )
        rows, index_n, sample_n = self.batches[batch], told[1], told[3]
        return Claimed(
            batch=batch,
            rows_n=rows.first_of_G[index_n] + sample_n,
            index_n=index_n,
            sample_n=sample_n,
            version_n=told[4],
            lengths=dict(zip(grant.rows.columns, told[len(OF_ROWS) :], strict=True)),
            done=grant.done,
        )

    def _charge(self, rows: Rows, which_n: Array, sign: int) -> None:
        np.add.at(self.held, rows.warehouse_n[which_n], sign * rows.bytes_n[which_n])
        np.maximum(self.peaks, self.held, out=self.peaks)

    def _tell_batch(self, rows: Rows) -> None:
        """A batch has begun, to all controllers."""
        told = Notices(batches=[BatchNotice(rows.name, rows.total, rows.states)])
        for ledger in self.ledgers.values():
            for warehouse in range(self.num_warehouses):
                ledger.apply(warehouse, told)

    def _tell_rows(
        self,
        rows: Rows,
        places: Array,
        samples: int,
        indexes_G: Array,
        names: Sequence[str],
        groups: Sequence[str],
    ) -> None:
        """New rows, to the controllers that they pass."""
        self._broadcast()  # what was before comes first
        uids, of_groups = pack_names(names), pack_names(groups)
        warehouse_G = indexes_G % self.num_warehouses
        for warehouse in np.unique(warehouse_G).tolist():
            here_G = warehouse_G == warehouse
            here_n = np.repeat(here_G, samples)
            own = places[here_n]
            told = RowsNotice(
                batch=rows.name,
                numbers=pack_numbers(rows.number_n[own]),
                names=select_names(uids, here_n),
                versions=pack_numbers(rows.version_n[own]),
                lengths={
                    name: pack_numbers(lengths[own]) for name, lengths in rows.lengths.items()
                },
                firsts=pack_numbers(rows.number_n[own[::samples]]),
                sizes=pack_numbers(np.full(int(here_G.sum()), samples)),
                indexes=pack_numbers(indexes_G[here_G]),
                groups=select_names(of_groups, here_G),
            )
            self._apply(warehouse, [Notice(told, rows.states, len(own))])
        self._answer_all()

    def _broadcast(self) -> None:
        """Tell the controllers what was written."""
        self._telling = False
        pending, self._pending = self._pending, {}
        notices: dict[int, list[Notice]] = {}
        for (batch, kind, name), pieces in pending.items():
            rows = self.batches[batch]
            if rows.dropped:
                continue
            for warehouse, where in _by_warehouse(rows, np.concatenate(pieces)):
                told: AckNotice | ColumnNotice
                numbers, concerned = pack_numbers(rows.number_n[where]), rows.states
                if kind == "ack":
                    told, concerned = AckNotice(batch=batch, numbers=numbers), (name,)
                else:
                    told = ColumnNotice(
                        batch=batch,
                        column=name,
                        numbers=numbers,
                        lengths=pack_numbers(rows.lengths[name][where]),
                        versions=pack_numbers(rows.version_n[where]),
                    )
                notices.setdefault(warehouse, []).append(Notice(told, concerned, len(where)))
        touched = [self._apply(warehouse, those) for warehouse, those in notices.items()]
        for batch in {batch for batch, _, _ in pending}:
            rows = self.batches[batch]
            if rows.known == rows.total and not rows.left:
                del self.batches[batch]
        for state in dict.fromkeys(state for states in touched for state in states):
            self._answer(state)

    def _apply(self, warehouse: int, notices: Sequence[Notice]) -> list[str]:
        """What a warehouse broadcasts, to each controller what concerns it; the states that it did."""
        concerned = []
        for state, ledger in self.ledgers.items():
            told = notices_for(notices, state=state, needs=ledger.needs)
            if told.rows or told.columns or told.acks:
                ledger.apply(warehouse, told)
                concerned.append(state)
        return concerned

    def _answer_all(self) -> None:
        for state in self.ledgers:
            self._answer(state)

    def _answer(self, state: str) -> None:
        """Every claim that can be met now, oldest first."""
        parked = self._parked[state]
        if parked:
            self._parked[state] = deque()
            left = deque(each for each in parked if not self._answered(state, each))
            self._parked[state] = left + self._parked[state]


def _by_warehouse(rows: Rows, which_n: Array) -> list[tuple[int, Array]]:
    """Rows' places by warehouse, their numbers there ascending."""
    where = which_n[np.lexsort((rows.number_n[which_n], rows.warehouse_n[which_n]))]
    warehouse_n = rows.warehouse_n[where]
    starts = np.flatnonzero(np.diff(warehouse_n, prepend=-1)).tolist()
    return [
        (int(warehouse_n[start]), where[start:end])
        for start, end in zip(starts, [*starts[1:], len(where)], strict=True)
    ]
