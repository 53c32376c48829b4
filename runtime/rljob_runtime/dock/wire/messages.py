"""Every message of the dock: what is asked, and what its answer says. docs/dock.md tells who sends which.

A sender makes one; a receiver gets it with all types checked. Small things that come in numbers are
named tuples, lists on the wire.
"""

from functools import cache
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

import numpy as np
from msgspec import Meta, Struct, field

from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import PackedNames
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.wire.frames import Kind, MalformedFrame, Message

A = TypeVar("A", bound=Message)

Count = Annotated[int, Meta(ge=0)]
NUMBER = np.dtype("<i8")


def packed(numbers: Array) -> bytes:
    """Whole numbers as messages carry them."""
    return numbers.astype(NUMBER, copy=False).tobytes()


def numbers_of(packed: bytes) -> Array:
    """What `packed` made. Raises MalformedFrame."""
    if len(packed) % NUMBER.itemsize:
        raise MalformedFrame(f"{len(packed)} bytes are not 64-bit integers")
    return np.frombuffer(packed, dtype=NUMBER)


class Request(Message, Generic[A], frozen=True):
    """What is asked; its parameter is the answer."""

    @property
    def answer(self) -> type[A]:
        """What the answer is read as."""
        return _answer_to(type(self))


@cache
def _answer_to(request: type[Request[A]]) -> type[A]:
    form: type[A] = get_args(vars(request)["__orig_bases__"][0])[0]
    return form


class Waits(Request[A], frozen=True, kw_only=True):
    """A request that waits at the server until it can be answered."""

    timeout: float = 0.0
    """Seconds for which the client still waits; its channel says so."""


class Done(Message, frozen=True):
    """It was carried out."""


DONE = Done()


class Failure(Message, frozen=True, kw_only=True):
    """It was not. code: of `failures`."""

    kind: ClassVar[Kind] = Kind.FAILED
    code: str
    text: str


class Welcome(Message, frozen=True, kw_only=True):
    """The token was right. machine: equal for processes that can share memory."""

    role: str
    machine: str
    socket: str
    """Path of the unix socket, empty where there is none: `no_socket` says why."""
    no_socket: str


class WarehouseWelcome(Welcome, frozen=True, kw_only=True):
    """A warehouse's. capacity: bytes. pin_seconds: how long an attached reader may look at an answer."""

    epoch: str
    capacity: int
    pin_seconds: float


class ControllerWelcome(Welcome, frozen=True, kw_only=True):
    """A controller's."""

    lease_seconds: float


class Hello(Request[Welcome], frozen=True, kw_only=True):
    """The first message of a connection. role: the server that is looked for."""

    kind: ClassVar[Kind] = Kind.HELLO
    token: str
    role: str
    owner: str
    session: str
    """Unique for each client, so that a restarted owner is another."""
    standby: bool = False
    """From a warehouse to the holder of its standby, which answers before it knows its own rows."""


class ColumnHead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column but for its bytes. tail: shape of one value. lengths: values of each row, as int64."""

    name: str
    dtype: str
    tail: Annotated[tuple[Count, ...], Meta(max_length=8)]
    lengths: bytes
    of_groups: bool = False
    """One row a group, in order of first appearance."""


class NewColumn(ColumnHead, frozen=True, kw_only=True):
    """A column that is put. sums: int64, of the bits of each row, as `bit_sums`."""

    sums: bytes


class GrantedSlab(NamedTuple):
    """Bytes of a warehouse's memory that one writer fills, from `start` to before `end`."""

    start: int
    end: int


class FoundColumn(ColumnHead, frozen=True, kw_only=True):
    """A column as it was found in a warehouse."""

    spans: bytes = b""
    """Where its bytes lie in the warehouse's memory: pairs of int64, start and end."""
    total: int = 0
    """Sum of its bits as they were written, as `bit_sums`."""


class NewRows(Struct, frozen=True, kw_only=True):
    """New rows of whole groups, those of a group one behind the other. Numbers are int64: one a row, or
    where it says so one a group."""

    names: PackedNames
    """Uids of the rows."""
    versions: bytes
    reserves: bytes
    """Bytes that are kept free for what states will write to a row."""
    groups: PackedNames
    """Names of the groups."""
    sizes: bytes
    """Rows of a group."""
    indexes: bytes
    """A group's number in its batch."""


class Stored(Message, frozen=True, kw_only=True):
    """New rows were put. waited: seconds, for room; None where there was some. granted: a slab for the next
    message, after one that lay in a slab."""

    stored: int
    waited: float | None = None
    granted: GrantedSlab | None = None


class PutRows(Waits[Stored], frozen=True, kw_only=True):
    """New rows, whole groups together. total: of the whole batch. states: that the rows pass."""

    kind: ClassVar[Kind] = Kind.PUT_ROWS
    batch: str
    total: Count
    states: list[str]
    rows: NewRows
    columns: list[NewColumn]
    granted: int | None = None
    """So many bytes of columns lie in the slab that the peer was granted, none behind the header."""


class Written(Message, frozen=True, kw_only=True):
    """What a write did."""

    stored: int
    """Rows that it was the first for."""
    duplicates: tuple[str, ...] = ()
    """Uids that were acknowledged before."""
    foreign: tuple[str, ...] = ()
    """Those of them that another lease acknowledged."""
    waited: float | None = None
    granted: GrantedSlab | None = None


class Write(Waits[Written], frozen=True, kw_only=True):
    """A state's columns of claimed rows, which acknowledges them; without columns that alone."""

    kind: ClassVar[Kind] = Kind.WRITE
    state: str
    lease: str
    uids: list[str]
    columns: list[NewColumn]
    version: int | None = None
    """Of the weights that made the columns."""
    granted: int | None = None


class Columns(Message, frozen=True, kw_only=True):
    """Columns of rows: in the payload, or with a pin in the warehouse's memory."""

    columns: list[FoundColumn]
    pin: int | None = None


class Read(Request[Columns], frozen=True, kw_only=True):
    """Columns of rows are asked for."""

    kind: ClassVar[Kind] = Kind.READ
    uids: list[str]
    columns: list[str]


class Attach(Request[Done], frozen=True):
    """The peer wants to map the warehouse's memory, to read and to write: two descriptors come along."""

    kind: ClassVar[Kind] = Kind.ATTACH


class SlabGrant(Message, frozen=True, kw_only=True):
    """slab: None where there is no room for one now; the columns come behind the header then."""

    slab: GrantedSlab | None = None


class AskSlab(Request[SlabGrant], frozen=True, kw_only=True):
    """An attached peer wants to write so many bytes of columns into the warehouse's memory itself. It has one
    such slab at most: an earlier one is given up."""

    kind: ClassVar[Kind] = Kind.ASK_SLAB
    num_bytes: Count


class Release(Request[Done], frozen=True, kw_only=True):
    """Nothing is looked at under these pins any more; is not answered."""

    kind: ClassVar[Kind] = Kind.RELEASE
    pins: list[int]


class Freed(Message, frozen=True, kw_only=True):
    """A batch was dropped. freed: rows."""

    freed: int


class DropBatch(Request[Freed], frozen=True, kw_only=True):
    """Free all rows of a batch for good."""

    kind: ClassVar[Kind] = Kind.DROP_BATCH
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
    """Rows of a batch, by their numbers in it there: a warehouse numbers them as they come, those of a group
    one behind the other in their order. Numbers are int64, one a row, or one a group of these rows."""

    batch: str
    numbers: bytes
    """Ascending."""
    names: PackedNames
    """Uids of the rows."""
    versions: bytes
    lengths: dict[str, bytes]
    """Values of each column that the state needs; -1 where a row lacks it."""
    firsts: bytes
    """Number of a group's first row."""
    sizes: bytes
    """Rows that a group was put with."""
    indexes: bytes
    """A group's number in its batch."""
    groups: PackedNames
    """Names of the groups."""


class ColumnNotice(Struct, frozen=True, kw_only=True):
    """A needed column of rows arrived. versions: the rows' weight versions now."""

    batch: str
    column: str
    numbers: bytes
    lengths: bytes
    versions: bytes


class AckNotice(Struct, frozen=True, kw_only=True):
    """The state acknowledged rows."""

    batch: str
    numbers: bytes


class Notices(Message, frozen=True, kw_only=True):
    """What happened in a warehouse, to be applied in this order."""

    kind: ClassVar[Kind] = Kind.NOTICE
    batches: list[BatchNotice] = field(default_factory=list)
    rows: list[RowsNotice] = field(default_factory=list)
    columns: list[ColumnNotice] = field(default_factory=list)
    acks: list[AckNotice] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)
    epoch: str | None = None
    """Alone: the warehouse has another epoch, with the rows that it had."""


class Snapshot(Message, frozen=True, kw_only=True):
    """All that a controller must know of a warehouse. rows: those its state has not acknowledged."""

    epoch: str
    batches: list[BatchNotice]
    rows: list[RowsNotice]


class Subscribe(Request[Snapshot], frozen=True, kw_only=True):
    """A controller wants a snapshot, and notices from then on. seen: epochs of the warehouse, in order."""

    kind: ClassVar[Kind] = Kind.SUBSCRIBE
    state: str
    needs: list[str]
    seen: list[str]


class BatchItem(Struct, frozen=True, kw_only=True):
    """A batch in a copy of a store, but for its rows."""

    name: str
    total: Count
    dropped: bool
    states: tuple[str, ...]
    shared: tuple[str, ...]
    """Columns that are of groups."""
    formats: dict[str, tuple[str, tuple[Count, ...]]]
    """Type and shape of one value, by column."""
    leases: list[str]
    """That have acknowledged rows."""


class GroupItems(Struct, frozen=True, kw_only=True):
    """Groups of a batch in a copy of a store, in their order; numbers are int64, one a group."""

    batch: str
    names: PackedNames
    sizes: bytes
    indexes: bytes
    charges: bytes
    """Bytes counted for a group, 0 where all of its rows are gone."""


class RowItems(Struct, frozen=True, kw_only=True):
    """Rows of a batch in a copy of a store, in their order, after all groups; numbers are int64."""

    batch: str
    names: PackedNames
    groups: bytes
    """Places of their groups."""
    gone: bytes
    versions: bytes
    charges: bytes
    num_bytes: bytes
    acks: dict[str, bytes]
    """By state the lease that acknowledged: its place among the batch's, and one more; 0: none."""


class SlabItem(Struct, frozen=True, kw_only=True):
    """Columns of rows of a batch, or of its groups, in a copy of a store; their bytes are in the payload.

    source: whose columns, as `BatchRecord` says. places: int64, numbers of the rows, or places of the groups.
    """

    batch: str
    source: str
    places: bytes
    columns: list[NewColumn]


class Chunk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a store, in this order; the columns of its slabs are the payload, one behind the other."""

    batches: list[BatchItem] = field(default_factory=list)
    groups: list[GroupItems] = field(default_factory=list)
    rows: list[RowItems] = field(default_factory=list)
    slabs: list[SlabItem] = field(default_factory=list)


class Held(Message, frozen=True, kw_only=True):
    """Whether rows of the warehouse are held, and their epoch."""

    held: bool
    epoch: str = ""


class TakeOver(Request[Held], frozen=True, kw_only=True):
    """A starting warehouse asks the holder of its standby. warehouse: its index."""

    kind: ClassVar[Kind] = Kind.TAKE_OVER
    warehouse: int


class Exported(Message, frozen=True, kw_only=True):
    """The next chunk, None after the last."""

    chunk: Chunk | None = None


class Export(Request[Exported], frozen=True):
    """A starting warehouse asks for the next chunk of what is held."""

    kind: ClassVar[Kind] = Kind.EXPORT


class Seed(Request[Done], frozen=True, kw_only=True):
    """A warehouse will send all that it has: the standby is empty now. warehouse: its index."""

    kind: ClassVar[Kind] = Kind.SEED
    warehouse: int


class Import(Request[Done], frozen=True, kw_only=True):
    """A chunk for the standby; at the end the epoch of all that came."""

    kind: ClassVar[Kind] = Kind.IMPORT
    chunk: Chunk | None = None
    epoch: str | None = None


class Forward(Request[Done], frozen=True, kw_only=True):
    """A change of a store, as it was carried out: one of the three."""

    kind: ClassVar[Kind] = Kind.FORWARD
    put: PutRows | None = None
    write: Write | None = None
    drop: DropBatch | None = None


OF_ROWS = ("group", "group_index", "group_size", "sample", "version", "warehouse", "attempt")
"""What is told of each claimed row, as of RowMeta; of its group the place among the names."""


class ClaimedRows(Struct, frozen=True, kw_only=True):
    """Rows that were given, in their order."""

    batch: str
    uids: PackedNames
    groups: PackedNames
    columns: list[str]
    """That the state needs."""
    numbers: bytes
    """int64: OF_ROWS, then lengths of the columns, each for all rows."""


class Granted(Message, frozen=True, kw_only=True):
    """The answer to a claim."""

    rows: ClaimedRows | None
    done: bool
    """Nothing of what was asked about is left for the state."""
    lease: str
    waited: dict[str, float] | None = None
    """Seconds by the state that was waited for, None where nothing was."""


class Claim(Waits[Granted], frozen=True, kw_only=True):
    """Rows that are ready are asked for, as `DockClient.claim` describes."""

    kind: ClassVar[Kind] = Kind.CLAIM
    request: str
    """Its number, repeated when it is asked again."""
    batch: str
    whole_groups: bool
    limit: int | None = None
    share: Share | None = None
    min_version: int | None = None


class HeldLease(Struct, frozen=True, kw_only=True):
    """Rows that a client holds."""

    lease: str
    uids: list[str]


class Renewed(Message, frozen=True, kw_only=True):
    """lost: uids that their lease does not hold any more."""

    lost: list[str]


class Renew(Request[Renewed], frozen=True, kw_only=True):
    """The leases live on."""

    kind: ClassVar[Kind] = Kind.RENEW
    leases: list[HeldLease]


class Returned(Message, frozen=True, kw_only=True):
    """returned: rows that others may claim now."""

    returned: int


class GiveBack(Request[Returned], frozen=True, kw_only=True):
    """Rows of a lease, unprocessed."""

    kind: ClassVar[Kind] = Kind.GIVE_BACK
    lease: str
    uids: list[str]


class OwnerGone(Request[Returned], frozen=True, kw_only=True):
    """All that the owner holds goes back."""

    kind: ClassVar[Kind] = Kind.OWNER_GONE
    owner: str


class ServerStats(Message, frozen=True, kw_only=True):
    """What a server counts."""

    role: str
    rows: int
    waiting: int
    """Parked requests."""
    refused: dict[str, int]
    """Connections and frames, by reason."""
    requests: dict[str, int]
    """By kind, and those that failed."""


class WarehouseStats(ServerStats, frozen=True, kw_only=True):
    """What a warehouse holds. The last four only where rows are held twice."""

    bytes: int
    capacity: int
    retained: int
    """Bytes of freed rows that readers look at."""
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
    """What a controller knows."""

    ready: int
    leased: int
    holders: dict[str, int]
    """Leased rows by owner."""
    acknowledged: int
    """Since it started."""
    leases: int
    expired: int
    warehouses: int
    """Those that it is subscribed to."""


class AskWarehouse(Request[WarehouseStats], frozen=True):
    """Statistics of a warehouse."""

    kind: ClassVar[Kind] = Kind.STATS


class AskController(Request[ControllerStats], frozen=True):
    """Statistics of a controller."""

    kind: ClassVar[Kind] = Kind.STATS


class Inspection(Message, frozen=True, kw_only=True):
    """What a server tells people, as JSON."""

    told: dict[str, Any]


class Inspect(Request[Inspection], frozen=True):
    """What a server holds, bounded."""

    kind: ClassVar[Kind] = Kind.INSPECT


class Asked(Message, frozen=True, kw_only=True):
    """ask: number of the switchboard's question, 0 without."""

    ask: int


class Pulse(Request[Asked], frozen=True, kw_only=True):
    """A process of the run lives."""

    kind: ClassVar[Kind] = Kind.PULSE
    pid: int
    host: str
    answers: int = 0
    """The question that `report` answers, 0 without."""
    report: dict[str, Any] | None = None
