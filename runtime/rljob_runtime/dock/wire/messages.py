"""Every message of the dock: requests and their answers. docs/dock.md lists who sends which.

A sender constructs a message; a receiver decodes it with all types checked. Small records that are sent in
large numbers are named tuples, which are lists on the wire.
"""

from functools import cache
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

import numpy as np
from msgspec import Meta, Struct, field

from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import PackedNames
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.wire.frames import DockMessage, FrameKind, MalformedFrame

A = TypeVar("A", bound=DockMessage)

Count = Annotated[int, Meta(ge=0)]
NUMBER = np.dtype("<i8")


def pack_numbers(numbers: Array) -> bytes:
    """Return integers as messages carry them."""
    return numbers.astype(NUMBER, copy=False).tobytes()


def unpack_numbers(data: bytes) -> Array:
    """Decode the integers that `pack_numbers` encoded. Raises MalformedFrame."""
    if len(data) % NUMBER.itemsize:
        raise MalformedFrame(f"{len(data)} bytes are not 64-bit integers")
    return np.frombuffer(data, dtype=NUMBER)


class Request(DockMessage, Generic[A], frozen=True):
    """A request; its type parameter is the type of the answer."""

    @property
    def answer(self) -> type[A]:
        """The type that the answer is decoded as."""
        return _answer_to(type(self))


@cache
def _answer_to(request: type[Request[A]]) -> type[A]:
    form: type[A] = get_args(vars(request)["__orig_bases__"][0])[0]
    return form


class WaitingRequest(Request[A], frozen=True, kw_only=True):
    """A request that waits at the server until it can be answered."""

    timeout: float = 0.0
    """Seconds for which the client still waits; its channel sets the value."""


class DoneReply(DockMessage, frozen=True):
    """The answer to a request that was carried out."""


DONE = DoneReply()


class FailureReply(DockMessage, frozen=True, kw_only=True):
    """The answer to a request that was not carried out. code: one of `failures`."""

    kind: ClassVar[FrameKind] = FrameKind.FAILED
    code: str
    text: str


class Welcome(DockMessage, frozen=True, kw_only=True):
    """The answer to a Hello with the right token. machine: equal for processes that can share memory."""

    role: str
    machine: str
    socket: str
    """Path of the unix socket; empty where there is none, then `no_socket` has the reason."""
    no_socket: str


class WarehouseWelcome(Welcome, frozen=True, kw_only=True):
    """The welcome of a warehouse.

    capacity: bytes. pin_seconds: how long an attached reader may use an answer.
    """

    epoch: str
    capacity: int
    pin_seconds: float


class ControllerWelcome(Welcome, frozen=True, kw_only=True):
    """The welcome of a controller."""

    lease_seconds: float


class Hello(Request[Welcome], frozen=True, kw_only=True):
    """The first message of a connection. role: the server that the client expects."""

    kind: ClassVar[FrameKind] = FrameKind.HELLO
    token: str
    role: str
    owner: str
    session: str
    """Unique for each client, so that a restarted owner has a new one."""
    standby: bool = False
    """True from a warehouse to the holder of its standby, which answers before it has its own rows."""


class ColumnHead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The metadata of a column, without its bytes.

    tail: shape of one value. lengths: number of values of each row, as int64.
    """

    name: str
    dtype: str
    tail: Annotated[tuple[Count, ...], Meta(max_length=8)]
    lengths: bytes
    of_groups: bool = False
    """True for a column with one row a group, in order of first appearance."""


class NewColumn(ColumnHead, frozen=True, kw_only=True):
    """A column that is put. sums: int64, of the bits of each row, as in `bit_sums`."""

    sums: bytes


class GrantedSlab(NamedTuple):
    """Bytes of a warehouse's memory that one writer fills, from `start` to before `end`."""

    start: int
    end: int


class StoredColumn(ColumnHead, frozen=True, kw_only=True):
    """A column as a warehouse stores it."""

    spans: bytes = b""
    """Location of its bytes in the warehouse's memory: pairs of int64, start and end."""
    total: int = 0
    """Sum of its bits as they were written, as in `bit_sums`."""


class NewRows(Struct, frozen=True, kw_only=True):
    """New rows of whole groups; the rows of a group are contiguous.

    Numbers are int64: one a row, or one a group where the field's note says that.
    """

    names: PackedNames
    """Uids of the rows."""
    versions: bytes
    reserves: bytes
    """Bytes that are reserved for what states will write to a row."""
    groups: PackedNames
    """Names of the groups."""
    sizes: bytes
    """Number of rows of each group."""
    indexes: bytes
    """Index of each group in its batch."""


class PutResult(DockMessage, frozen=True, kw_only=True):
    """The answer to a put of new rows.

    waited: seconds of waiting for room; None where there was room. granted: a slab for the next message,
    after one that was in a slab.
    """

    stored: int
    waited: float | None = None
    granted: GrantedSlab | None = None


class PutRows(WaitingRequest[PutResult], frozen=True, kw_only=True):
    """New rows, whole groups together.

    total: rows of the whole batch. states: states that the rows pass.
    """

    kind: ClassVar[FrameKind] = FrameKind.PUT_ROWS
    batch: str
    total: Count
    states: list[str]
    rows: NewRows
    columns: list[NewColumn]
    granted: int | None = None
    """Number of bytes of columns in the slab that the peer was granted; then no bytes follow the header."""


class WriteResult(DockMessage, frozen=True, kw_only=True):
    """The result of a write."""

    stored: int
    """Number of rows that this write was the first for."""
    duplicates: tuple[str, ...] = ()
    """Uids that were acknowledged before."""
    foreign: tuple[str, ...] = ()
    """Duplicates that another lease acknowledged."""
    waited: float | None = None
    granted: GrantedSlab | None = None


class Write(WaitingRequest[WriteResult], frozen=True, kw_only=True):
    """A state's columns of claimed rows, which acknowledges them; without columns it only acknowledges."""

    kind: ClassVar[FrameKind] = FrameKind.WRITE
    state: str
    lease: str
    uids: list[str]
    columns: list[NewColumn]
    version: int | None = None
    """Version of the weights that produced the columns."""
    granted: int | None = None


class Columns(DockMessage, frozen=True, kw_only=True):
    """Columns of rows: in the payload, or with a pin in the warehouse's memory."""

    columns: list[StoredColumn]
    pin: int | None = None


class Read(Request[Columns], frozen=True, kw_only=True):
    """A request for columns of rows."""

    kind: ClassVar[FrameKind] = FrameKind.READ
    uids: list[str]
    columns: list[str]


class Attach(Request[DoneReply], frozen=True):
    """A request to map the warehouse's memory, to read and to write; the answer carries two descriptors."""

    kind: ClassVar[FrameKind] = FrameKind.ATTACH


class SlabGrant(DockMessage, frozen=True, kw_only=True):
    """The answer to AskSlab.

    slab: None where there is no room for one; the columns then follow the header.
    """

    slab: GrantedSlab | None = None


class AskSlab(Request[SlabGrant], frozen=True, kw_only=True):
    """A request of an attached peer for a slab of so many bytes, into which it writes columns itself.

    A peer has at most one such slab; an earlier one is given up.
    """

    kind: ClassVar[FrameKind] = FrameKind.ASK_SLAB
    num_bytes: Count


class Release(Request[DoneReply], frozen=True, kw_only=True):
    """A notification that the peer no longer uses the data under these pins; it has no answer."""

    kind: ClassVar[FrameKind] = FrameKind.RELEASE
    pins: list[int]


class DropResult(DockMessage, frozen=True, kw_only=True):
    """The answer to DropBatch. freed: number of rows."""

    freed: int


class DropBatch(Request[DropResult], frozen=True, kw_only=True):
    """A request to free all rows of a batch for good."""

    kind: ClassVar[FrameKind] = FrameKind.DROP_BATCH
    batch: str


class BatchNotice(NamedTuple):
    """A batch in a warehouse. known, acked: in a snapshot, rows ever put there, and acknowledged."""

    name: str
    total: int
    states: tuple[str, ...]
    known: int = 0
    acked: int = 0
    dropped: bool = False


class RowsNotice(Struct, frozen=True, kw_only=True):
    """Rows of a batch by their numbers in the warehouse.

    A warehouse numbers rows in the order of arrival; the rows of a group are contiguous. Numbers are int64,
    one a row, or one a group of these rows.
    """

    batch: str
    numbers: bytes
    """Numbers of the rows, ascending."""
    names: PackedNames
    """Uids of the rows."""
    versions: bytes
    lengths: dict[str, bytes]
    """Lengths of each column that the state needs; -1 where a row lacks it."""
    firsts: bytes
    """Number of the first row of each group."""
    sizes: bytes
    """Number of rows that each group was put with."""
    indexes: bytes
    """Index of each group in its batch."""
    groups: PackedNames
    """Names of the groups."""


class ColumnNotice(Struct, frozen=True, kw_only=True):
    """A needed column of rows arrived. versions: the rows' current weight versions."""

    batch: str
    column: str
    numbers: bytes
    lengths: bytes
    versions: bytes


class AckNotice(Struct, frozen=True, kw_only=True):
    """The state acknowledged these rows."""

    batch: str
    numbers: bytes


class Notices(DockMessage, frozen=True, kw_only=True):
    """Changes of a warehouse, to be applied in this order."""

    kind: ClassVar[FrameKind] = FrameKind.NOTICE
    batches: list[BatchNotice] = field(default_factory=list)
    rows: list[RowsNotice] = field(default_factory=list)
    columns: list[ColumnNotice] = field(default_factory=list)
    acks: list[AckNotice] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)
    epoch: str | None = None
    """Sent alone: the warehouse has a new epoch, with the same rows."""


class Snapshot(DockMessage, frozen=True, kw_only=True):
    """A warehouse's state for a controller. rows: those that its state has not acknowledged."""

    epoch: str
    batches: list[BatchNotice]
    rows: list[RowsNotice]


class Subscribe(Request[Snapshot], frozen=True, kw_only=True):
    """A controller's request for a snapshot, and for notices from then on.

    seen: epochs of the warehouse that the controller received, in order.
    """

    kind: ClassVar[FrameKind] = FrameKind.SUBSCRIBE
    state: str
    needs: list[str]
    seen: list[str]


class BatchItem(Struct, frozen=True, kw_only=True):
    """A batch in a copy of a store, without its rows."""

    name: str
    total: Count
    dropped: bool
    states: tuple[str, ...]
    shared: tuple[str, ...]
    """Names of the columns that are stored once a group."""
    formats: dict[str, tuple[str, tuple[Count, ...]]]
    """Type and shape of one value, by column."""
    leases: list[str]
    """Leases that have acknowledged rows."""


class GroupItems(Struct, frozen=True, kw_only=True):
    """Groups of a batch in a copy of a store, in order; numbers are int64, one a group."""

    batch: str
    names: PackedNames
    sizes: bytes
    indexes: bytes
    charges: bytes
    """Bytes charged for each group, 0 where all of its rows are gone."""


class RowItems(Struct, frozen=True, kw_only=True):
    """Rows of a batch in a copy of a store, in order, after all groups; numbers are int64."""

    batch: str
    names: PackedNames
    groups: bytes
    """Index of each row's group."""
    gone: bytes
    versions: bytes
    charges: bytes
    num_bytes: bytes
    acks: dict[str, bytes]
    """For each state the lease that acknowledged each row: its index in the batch's leases plus one; 0:
    none."""


class SlabItem(Struct, frozen=True, kw_only=True):
    """Columns of rows of a batch, or of its groups, in a copy of a store; their bytes are in the payload.

    source: where the columns came from, as in `BatchRecord`. places: int64, numbers of the rows, or indices
    of the groups.
    """

    batch: str
    source: str
    places: bytes
    columns: list[NewColumn]


class Chunk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chunk of a store, with its fields in this order; the payload is the columns of its slabs,
    concatenated."""

    batches: list[BatchItem] = field(default_factory=list)
    groups: list[GroupItems] = field(default_factory=list)
    rows: list[RowItems] = field(default_factory=list)
    slabs: list[SlabItem] = field(default_factory=list)


class StandbyState(DockMessage, frozen=True, kw_only=True):
    """Whether the standby holds rows of the warehouse, and their epoch."""

    held: bool
    epoch: str = ""


class TakeOver(Request[StandbyState], frozen=True, kw_only=True):
    """A starting warehouse's request to the holder of its standby. warehouse: its index."""

    kind: ClassVar[FrameKind] = FrameKind.TAKE_OVER
    warehouse: int


class ExportedChunk(DockMessage, frozen=True, kw_only=True):
    """The next chunk, None after the last."""

    chunk: Chunk | None = None


class Export(Request[ExportedChunk], frozen=True):
    """A starting warehouse's request for the next chunk of its standby."""

    kind: ClassVar[FrameKind] = FrameKind.EXPORT


class Seed(Request[DoneReply], frozen=True, kw_only=True):
    """A notification that the warehouse sends its full content: the standby starts empty. warehouse: its
    index."""

    kind: ClassVar[FrameKind] = FrameKind.SEED
    warehouse: int


class Import(Request[DoneReply], frozen=True, kw_only=True):
    """A chunk for the standby; after the last chunk, the epoch of the content."""

    kind: ClassVar[FrameKind] = FrameKind.IMPORT
    chunk: Chunk | None = None
    epoch: str | None = None


class Forward(Request[DoneReply], frozen=True, kw_only=True):
    """A change of a store, after it was carried out; exactly one field is set."""

    kind: ClassVar[FrameKind] = FrameKind.FORWARD
    put: PutRows | None = None
    write: Write | None = None
    drop: DropBatch | None = None


OF_ROWS = ("group", "group_index", "group_size", "sample", "version", "warehouse", "attempt")
"""Metadata of each claimed row, as in RowMeta; `group` is the index of its group's name."""


class ClaimedRows(Struct, frozen=True, kw_only=True):
    """Rows that were granted, in order."""

    batch: str
    uids: PackedNames
    groups: PackedNames
    columns: list[str]
    """Columns that the state needs."""
    numbers: bytes
    """An int64 table: OF_ROWS, then lengths of the columns, each for all rows."""


class ClaimAnswer(DockMessage, frozen=True, kw_only=True):
    """The answer to a claim."""

    rows: ClaimedRows | None
    done: bool
    """True when the state has acknowledged all that was claimed."""
    lease: str
    waited: dict[str, float] | None = None
    """Seconds by the state that was waited for; None where there was no wait."""


class ClaimRows(WaitingRequest[ClaimAnswer], frozen=True, kw_only=True):
    """A request for rows that are ready, as `DockClient.claim` describes."""

    kind: ClassVar[FrameKind] = FrameKind.CLAIM
    request: str
    """The request's number, the same when it is sent again."""
    batch: str
    whole_groups: bool
    limit: int | None = None
    share: Share | None = None
    min_version: int | None = None


class LeasedRows(Struct, frozen=True, kw_only=True):
    """Rows that a client holds."""

    lease: str
    uids: list[str]


class RenewAnswer(DockMessage, frozen=True, kw_only=True):
    """The answer to Renew. lost: uids that their lease does not hold any more."""

    lost: list[str]


class Renew(Request[RenewAnswer], frozen=True, kw_only=True):
    """A request to extend leases."""

    kind: ClassVar[FrameKind] = FrameKind.RENEW
    leases: list[LeasedRows]


class ReturnedRows(DockMessage, frozen=True, kw_only=True):
    """The answer to GiveBack and OwnerGone. returned: number of rows that others may claim now."""

    returned: int


class GiveBack(Request[ReturnedRows], frozen=True, kw_only=True):
    """A request to return unprocessed rows of a lease."""

    kind: ClassVar[FrameKind] = FrameKind.GIVE_BACK
    lease: str
    uids: list[str]


class OwnerGone(Request[ReturnedRows], frozen=True, kw_only=True):
    """A request to return all rows that the owner holds."""

    kind: ClassVar[FrameKind] = FrameKind.OWNER_GONE
    owner: str


class ServerStats(DockMessage, frozen=True, kw_only=True):
    """The counters of a server."""

    role: str
    rows: int
    waiting: int
    """Number of parked requests."""
    refused: dict[str, int]
    """Refused connections and frames, by reason."""
    requests: dict[str, int]
    """Requests by kind, and those that failed."""


class WarehouseStats(ServerStats, frozen=True, kw_only=True):
    """The statistics of a warehouse. The last four are set only where rows are stored twice."""

    bytes: int
    capacity: int
    retained: int
    """Bytes of freed rows that readers still use."""
    holes: int
    pins: int
    expired_pins: int
    attached: int
    subscribers: int
    unacknowledged: dict[str, int]
    """Live rows by state."""
    batches: dict[str, int]
    """Live rows by batch."""
    replicated: bool | None = None
    times_alone: int | None = None
    standby_rows: int | None = None
    standby_bytes: int | None = None


class ControllerStats(ServerStats, frozen=True, kw_only=True):
    """The statistics of a controller."""

    ready: int
    leased: int
    holders: dict[str, int]
    """Leased rows by owner."""
    acknowledged: int
    """Rows acknowledged since the controller started."""
    leases: int
    expired: int
    warehouses: int
    """Number of warehouses that it is subscribed to."""


class AskWarehouseStats(Request[WarehouseStats], frozen=True):
    """A request for the statistics of a warehouse."""

    kind: ClassVar[FrameKind] = FrameKind.STATS


class AskControllerStats(Request[ControllerStats], frozen=True):
    """A request for the statistics of a controller."""

    kind: ClassVar[FrameKind] = FrameKind.STATS


class Inspection(DockMessage, frozen=True, kw_only=True):
    """A server's state as JSON, for people."""

    told: dict[str, Any]


class Inspect(Request[Inspection], frozen=True):
    """A request for a server's state, bounded in size."""

    kind: ClassVar[FrameKind] = FrameKind.INSPECT


class PulseAnswer(DockMessage, frozen=True, kw_only=True):
    """The switchboard's answer. ask: number of its question, 0 for none."""

    ask: int


class PulseRequest(Request[PulseAnswer], frozen=True, kw_only=True):
    """A sign of life from a process of the run."""

    kind: ClassVar[FrameKind] = FrameKind.PULSE
    pid: int
    host: str
    answers: int = 0
    """Number of the question that `report` answers, 0 for none."""
    report: dict[str, Any] | None = None
