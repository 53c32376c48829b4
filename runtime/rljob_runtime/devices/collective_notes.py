"""Notes of the collectives that this process entered: operation, group, sequence number, start time.

`wire`, `collectives`, `sync_group` and `peers` add notes; a thread that answers when a run hangs (`reporter`)
reads them. Ranks of a group note the same order, so the others wait for the rank with the lower number. A
note costs about two microseconds and references no tensor.
"""

import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

from rljob_runtime.devices.own_time import OWN_TIME

MAX_GROUPS = 64
"""Limit of reported groups per process: the most recently used ones."""


class TensorInfo(Protocol):
    """The properties of a tensor that a note stores."""

    @property
    def shape(self) -> Sequence[int]:
        """Return the size of each dimension; a note stores them as a tuple."""
        ...

    @property
    def dtype(self) -> object:
        """Return the element type, which prints as `torch.bfloat16` or alike."""
        ...

    @property
    def nbytes(self) -> int:
        """Return the bytes of all elements, as a note reports them."""
        ...


class Note:
    """One collective of this process. number: its position in its group's sequence, from 1. Times are
    monotonic."""

    __slots__ = (
        "awaited",
        "bytes",
        "dtype",
        "error",
        "number",
        "operation",
        "shape",
        "since",
        "state",
    )

    def __init__(self, operation: str, number: int, tensor: TensorInfo | None) -> None:
        self.operation, self.number = operation, number
        self.shape = () if tensor is None else tuple(tensor.shape)
        self.dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        self.bytes = 0 if tensor is None else tensor.nbytes
        self.state: Literal["begun", "waits", "done", "failed"] = "begun"
        self.since = time.monotonic()
        self.error = ""
        self.awaited: tuple[int, ...] = ()

    def waits(self) -> None:
        """Record that this process waits for the collective from now on."""
        self.state, self.since = "waits", time.monotonic()

    def ends(self, error: BaseException | None = None) -> None:
        """Record the end of the collective, with its error if it failed."""
        self.state, self.since = ("done" if error is None else "failed"), time.monotonic()
        self.error = "" if error is None else f"{type(error).__name__}: {error}"[:300]


class GroupNotes:
    """Notes of one group. key: equal on all of its ranks, and unique to the group. ranks: world ranks by rank
    in the group; empty where they are unknown. rank: of this process in the group."""

    def __init__(self, key: str, *, rank: int, size: int, ranks: Sequence[int] = ()) -> None:
        self.key, self.rank, self.size, self.ranks = key, rank, size, list(ranks)
        self._numbers = itertools.count(1)
        self.last: Note | None = None
        self.waiting: dict[int, Note] = {}

    def begin(self, operation: str, tensor: TensorInfo | None = None) -> Note:
        """Note an asynchronous collective, which runs until this process waits for it."""
        self.last = note = Note(operation, next(self._numbers), tensor)
        return note

    @contextmanager
    def wait(self, note: Note) -> Iterator[None]:
        """Mark the collective as awaited during the body."""
        note.waits()
        self.waiting[note.number] = note
        since = OWN_TIME.begin_wait()
        try:
            yield
        except BaseException as error:
            note.ends(error)
            raise
        else:
            note.ends()
        finally:
            OWN_TIME.end_wait(since)
            self.waiting.pop(note.number, None)

    @contextmanager
    def blocking(self, operation: str, tensor: TensorInfo | None = None) -> Iterator[Note]:
        """Note a blocking collective, which the body runs."""
        note = self.begin(operation, tensor)
        with self.wait(note):
            yield note

    def as_json(self, monotonic_s: float) -> dict[str, Any]:
        """Return as JSON the group, its last collective, and the awaited ones."""
        waiting = sorted(self.waiting.values(), key=lambda note: note.number)
        last = self.last
        return {
            "key": self.key,
            "rank": self.rank,
            "size": self.size,
            "ranks": self.ranks,
            "last": _note_json(last, monotonic_s) if last is not None else None,
            "waits": [_note_json(note, monotonic_s) for note in waiting if note.state == "waits"],
        }


def _note_json(note: Note, monotonic_s: float) -> dict[str, Any]:
    return {
        "what": note.operation,
        "number": note.number,
        "shape": list(note.shape),
        "dtype": note.dtype,
        "bytes": note.bytes,
        "state": note.state,
        "seconds": round(max(0.0, monotonic_s - note.since), 3),
        "error": note.error,
        "awaited": list(note.awaited),
    }


class CollectiveNotes:
    """Notes of all groups of a process. Any thread may add and read notes."""

    def __init__(self) -> None:
        self._groups: WeakKeyDictionary[Any, GroupNotes] = WeakKeyDictionary()
        self._pairs: dict[str, GroupNotes] = {}
        self._lock = threading.Lock()

    def of(self, group: Any) -> GroupNotes:
        """Return the notes of a group of `torch.distributed`."""
        notes = self._groups.get(group)
        return self._register(group) if notes is None else notes

    def pair(self, group: Any, source: int, target: int) -> GroupNotes:
        """Return the notes of messages from one rank of a group to another; only these two ranks count
        them."""
        notes = self.of(group)
        key = f"{notes.key}, {source} to {target}"
        pair = self._pairs.get(key)
        if pair is None:
            ranks = [notes.ranks[rank] for rank in (source, target)] if notes.ranks else []
            rank = 0 if notes.rank == source else 1
            pair = self._pairs.setdefault(key, GroupNotes(key, rank=rank, size=2, ranks=ranks))
        return pair

    def add(self, owner: Any, notes: GroupNotes) -> GroupNotes:
        """Register a group that does not belong to torch.distributed; it is reported while its owner
        lives."""
        with self._lock:
            self._groups[owner] = notes
        return notes

    def as_json(self) -> list[dict[str, Any]]:
        """Return all groups as JSON, waiting ones first, then by their last collectives, the latest first."""
        monotonic_s = time.monotonic()
        with self._lock:
            groups = [*self._groups.values(), *self._pairs.values()]
        rows = [group.as_json(monotonic_s) for group in groups]
        return sorted(rows, key=_order)[:MAX_GROUPS]

    def _register(self, group: Any) -> GroupNotes:
        import torch.distributed as dist

        try:
            ranks, name = dist.get_process_group_ranks(group), group.group_name
        except (KeyError, RuntimeError, ValueError):  # created without torch.distributed
            ranks, name = [], "own"
        key = f"group {name}, ranks {','.join(map(str, ranks)) or '?'}"
        notes = GroupNotes(key, rank=group.rank(), size=group.size(), ranks=ranks)
        return self.add(group, notes)


def _order(group: Mapping[str, Any]) -> tuple[bool, float]:
    last = group["last"]
    return not group["waits"], last["seconds"] if last else float("inf")


NOTES = CollectiveNotes()
"""The notes of this process, which is one rank in each of its groups."""
