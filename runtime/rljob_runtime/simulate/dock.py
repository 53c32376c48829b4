"""The dock of a simulated run: the controllers' own ledgers, and warehouses that store lengths in place of
bytes.

`ControllerLedger` decides claims, as in the controllers' processes; the ledgers receive a warehouse's
broadcasts as its own message types. The stand-ins for workers call this.
"""

# n rows of a batch by their indices, ordered by group and sample; G groups

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
"""How long a warehouse collects notices before it broadcasts them."""
NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedClaim:
    """Claimed rows of a batch, in order.

    index_n: numbers of their groups. version_n: of the weights that generated them. lengths: of the columns
    that the state needs.
    """

    batch: str
    rows_n: Array
    index_n: Array
    sample_n: Array
    version_n: Array
    lengths: Mapping[str, Array]
    done: bool

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(self.rows_n)

    @property
    def prompt_n(self) -> Array:
        """Return the tokens of each row's prompt."""
        return self.lengths["prompt"]


class SimulatedBatch:
    """The rows of a batch.

    total: number of rows when complete. first_of_G: index of each group's first row, by the group's number;
    -1 if it was not put. acks_n: number of states that have acknowledged each row. bytes_n: bytes charged for
    it. left: number of rows that are not freed.
    """

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
        """Add rows of whole groups, none of which is known; returns their indices."""
        first, count = self.known, len(indexes_G) * samples
        room = max(len(self.first_of_G), int(indexes_G.max()) + 1)
        self.first_of_G = _longer(self.first_of_G, room, -1)
        self.first_of_G[indexes_G] = first + np.arange(len(indexes_G)) * samples
        warehouse_n = np.repeat(indexes_G % len(self._counts), samples)
        order = np.argsort(warehouse_n, kind="stable")
        per_warehouse = np.bincount(warehouse_n, minlength=len(self._counts))
        number_n = np.empty(count, dtype=np.int64)
        begins = per_warehouse.cumsum() - per_warehouse
        number_n[order] = np.arange(count) + np.repeat(self._counts - begins, per_warehouse)
        self._counts += per_warehouse
        self.known += count
        self.left += count
        self.warehouse_n = np.concatenate([self.warehouse_n, warehouse_n])
        self.number_n = np.concatenate([self.number_n, number_n])
        self.version_n = _longer(self.version_n, self.known, version)
        self.acks_n = _longer(self.acks_n, self.known, 0)
        self.bytes_n = _longer(self.bytes_n, self.known, num_bytes)
        for name in {**self.lengths, **lengths}:
            known_lengths = self.lengths.get(name, NO_ROWS)
            self.lengths[name] = _longer(known_lengths, self.known, UNKNOWN)
        for name, values in lengths.items():
            self.lengths[name][first:] = np.repeat(values, samples)
        return np.arange(first, self.known)


def _longer(values: Array, length: int, fill: int) -> Array:
    return np.concatenate([values, np.full(length - len(values), fill, dtype=np.int64)])


@dataclass(slots=True, kw_only=True)
class ParkedRequest:
    """A claim that waits. lacks: the state that it waits for, according to its controller."""

    request: ClaimRequest
    call: VirtualCall
    since: float
    lacks: str


class SimulatedDock:
    """The dock of one run. stored_bytes: by warehouse; peaks: maximum since the last `take_peak`."""

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
        self.batches: dict[str, SimulatedBatch] = {}
        self.stored_bytes = np.zeros(warehouses, dtype=np.int64)
        self.peaks = np.zeros(warehouses, dtype=np.int64)
        self._parked: dict[str, deque[ParkedRequest]] = {}
        self._pending: dict[tuple[str, str, str], list[Array]] = {}
        self._broadcast_scheduled = False
        self._requests = 0

    def add_controller(self, state: str) -> None:
        """Start the controller of a state."""
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
        """Add rows of whole groups; lengths: of their columns, one per group. Returns how many rows are new.

        Repeating a call changes nothing. Raises DockLost for a batch that was dropped.
        """
        rows = self.batches.get(batch)
        if rows is None:
            state_names = tuple(states or self.graph.names)
            rows = self.batches[batch] = SimulatedBatch(
                batch, total, state_names, self.num_warehouses
            )
            self._announce_batch(rows)
        if rows.dropped:
            raise DockLost(f"batch {batch} was dropped")
        known_G = (indexes_G < len(rows.first_of_G)).nonzero()[0]
        if len(known_G) and (rows.first_of_G[indexes_G[known_G]] >= 0).any():
            return 0
        indices = rows.add(
            indexes_G, samples, version=version, num_bytes=ROW_BYTES + reserve, lengths=lengths
        )
        self._charge(rows, indices, 1)
        self._announce_rows(rows, indices, samples, indexes_G, names, groups)
        return len(indices)

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
        """Return a call that ends with the controller's grant: `SimulatedClaim`, and seconds waited by state.

        It fails with the errors of a claim.
        """
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
        parked = ParkedRequest(request=request, call=call, since=self._clock.seconds, lacks="")
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
        claimed: SimulatedClaim,
        columns: Mapping[str, Array],
        *,
        which: Array | slice = slice(None),
        version: int | None = None,
    ) -> None:
        """Write columns of claimed rows, by their lengths, and acknowledge the rows.

        which: selects some of the rows. Raises DockLost.
        """
        rows, rows_n = self.batches.get(claimed.batch), claimed.rows_n[which]
        if rows is None or rows.dropped:
            raise DockLost(f"batch {claimed.batch} was dropped")
        if version is not None:
            rows.version_n[rows_n] = version
        for name, lengths in columns.items():
            if name not in rows.lengths:
                rows.lengths[name] = np.full(rows.known, UNKNOWN, dtype=np.int64)
            rows.lengths[name][rows_n] = lengths
            self._pending.setdefault((rows.name, "column", name), []).append(rows_n)
        self._pending.setdefault((rows.name, "ack", state), []).append(rows_n)
        rows.acks_n[rows_n] += 1
        ended = rows_n[rows.acks_n[rows_n] == len(rows.states)]
        if len(ended):
            self._charge(rows, ended, -1)
            rows.left -= len(ended)
        if not self._broadcast_scheduled:
            self._broadcast_scheduled = True
            self._clock.after(BROADCAST_SECONDS, self._broadcast)

    def drop(self, batch: str) -> int:
        """Free the batch's rows permanently; claims that wait for them end. Returns how many were freed."""
        self._broadcast()
        rows, freed = self.batches.get(batch), 0
        if rows is None:
            rows = self.batches[batch] = SimulatedBatch(batch, 0, (), self.num_warehouses)
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
        """Return the rows of a dead worker, and remove its claims."""
        for state, ledger in self.ledgers.items():
            ledger.owner_gone(owner)
            self._parked[state] = deque(p for p in self._parked[state] if p.request.owner != owner)
        self._answer_all()

    def counts(self) -> dict[str, RowCounts]:
        """Return the number of rows at each state, according to its controller."""
        counts = {}
        for state, ledger in self.ledgers.items():
            ready = sum(batch.num_ready for batch in ledger.batches.values())
            leased = sum(lease.num_rows for lease in ledger.leases.values())
            lacking = ledger.num_rows - ready - leased
            counts[state] = RowCounts(lacking, ready, leased, ledger.acknowledged)
        return counts

    def take_peak(self, warehouse: int) -> int:
        """Return the maximum bytes that a warehouse stored since the last call."""
        peak, self.peaks[warehouse] = int(self.peaks[warehouse]), self.stored_bytes[warehouse]
        return peak

    def _answered(self, state: str, parked: ParkedRequest) -> bool:
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

    def _claimed(self, batch: str, grant: ClaimGrant) -> SimulatedClaim:
        if grant.rows is None:
            none = dict.fromkeys(("rows_n", "index_n", "sample_n", "version_n"), NO_ROWS)
            return SimulatedClaim(batch=batch, lengths={}, done=grant.done, **none)
        numbers = unpack_numbers(grant.rows.numbers).reshape(
            len(OF_ROWS) + len(grant.rows.columns), -1
        )
        rows, index_n, sample_n = self.batches[batch], numbers[1], numbers[3]
        return SimulatedClaim(
            batch=batch,
            rows_n=rows.first_of_G[index_n] + sample_n,
            index_n=index_n,
            sample_n=sample_n,
            version_n=numbers[4],
            lengths=dict(zip(grant.rows.columns, numbers[len(OF_ROWS) :], strict=True)),
            done=grant.done,
        )

    def _charge(self, rows: SimulatedBatch, which_n: Array, sign: int) -> None:
        np.add.at(self.stored_bytes, rows.warehouse_n[which_n], sign * rows.bytes_n[which_n])
        np.maximum(self.peaks, self.stored_bytes, out=self.peaks)

    def _announce_batch(self, rows: SimulatedBatch) -> None:
        """Announce a new batch to all controllers."""
        notices = Notices(batches=[BatchNotice(rows.name, rows.total, rows.states)])
        for ledger in self.ledgers.values():
            for warehouse in range(self.num_warehouses):
                ledger.apply(warehouse, notices)

    def _announce_rows(
        self,
        rows: SimulatedBatch,
        indices: Array,
        samples: int,
        indexes_G: Array,
        names: Sequence[str],
        groups: Sequence[str],
    ) -> None:
        """Announce new rows to the controllers whose states they pass."""
        self._broadcast()  # earlier notices are sent first
        uids, of_groups = pack_names(names), pack_names(groups)
        warehouse_G = indexes_G % self.num_warehouses
        for warehouse in np.unique(warehouse_G).tolist():
            here_G = warehouse_G == warehouse
            here_n = np.repeat(here_G, samples)
            rows_n = indices[here_n]
            notice = RowsNotice(
                batch=rows.name,
                numbers=pack_numbers(rows.number_n[rows_n]),
                names=select_names(uids, here_n),
                versions=pack_numbers(rows.version_n[rows_n]),
                lengths={
                    name: pack_numbers(lengths[rows_n]) for name, lengths in rows.lengths.items()
                },
                firsts=pack_numbers(rows.number_n[rows_n[::samples]]),
                sizes=pack_numbers(np.full(int(here_G.sum()), samples)),
                indexes=pack_numbers(indexes_G[here_G]),
                groups=select_names(of_groups, here_G),
            )
            self._apply(warehouse, [Notice(notice, rows.states, len(rows_n))])
        self._answer_all()

    def _broadcast(self) -> None:
        """Send the pending notices of writes to the controllers."""
        self._broadcast_scheduled = False
        pending, self._pending = self._pending, {}
        notices: dict[int, list[Notice]] = {}
        for (batch, kind, name), row_indices in pending.items():
            rows = self.batches[batch]
            if rows.dropped:
                continue
            for warehouse, rows_n in _by_warehouse(rows, np.concatenate(row_indices)):
                notice: AckNotice | ColumnNotice
                numbers, concerned = pack_numbers(rows.number_n[rows_n]), rows.states
                if kind == "ack":
                    notice, concerned = AckNotice(batch=batch, numbers=numbers), (name,)
                else:
                    notice = ColumnNotice(
                        batch=batch,
                        column=name,
                        numbers=numbers,
                        lengths=pack_numbers(rows.lengths[name][rows_n]),
                        versions=pack_numbers(rows.version_n[rows_n]),
                    )
                notices.setdefault(warehouse, []).append(Notice(notice, concerned, len(rows_n)))
        concerned_states = [
            self._apply(warehouse, warehouse_notices)
            for warehouse, warehouse_notices in notices.items()
        ]
        for batch in {batch for batch, _, _ in pending}:
            rows = self.batches[batch]
            if rows.known == rows.total and not rows.left:
                del self.batches[batch]
        for state in dict.fromkeys(state for states in concerned_states for state in states):
            self._answer(state)

    def _apply(self, warehouse: int, notices: Sequence[Notice]) -> list[str]:
        """Send a warehouse's notices to the controllers that they concern; returns these states."""
        concerned = []
        for state, ledger in self.ledgers.items():
            relevant = notices_for(notices, state=state, needs=ledger.needs)
            if relevant.rows or relevant.columns or relevant.acks:
                ledger.apply(warehouse, relevant)
                concerned.append(state)
        return concerned

    def _answer_all(self) -> None:
        for state in self.ledgers:
            self._answer(state)

    def _answer(self, state: str) -> None:
        """Answer every claim that can be granted, oldest first."""
        parked = self._parked[state]
        if parked:
            self._parked[state] = deque()
            unanswered = deque(claim for claim in parked if not self._answered(state, claim))
            self._parked[state] = unanswered + self._parked[state]


def _by_warehouse(rows: SimulatedBatch, which_n: Array) -> list[tuple[int, Array]]:
    """Return the rows' indices by warehouse, their numbers there ascending."""
    ordered_n = which_n[np.lexsort((rows.number_n[which_n], rows.warehouse_n[which_n]))]
    warehouse_n = rows.warehouse_n[ordered_n]
    starts = np.flatnonzero(np.diff(warehouse_n, prepend=-1)).tolist()
    return [
        (int(warehouse_n[start]), ordered_n[start:end])
        for start, end in zip(starts, [*starts[1:], len(ordered_n)], strict=True)
    ]
