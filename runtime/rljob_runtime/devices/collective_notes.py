"""What this process has entered of collectives: which, on which group, the how manieth, since when.

`wire`, `collectives`, `sync_group` and `peers` note what they do; a thread that answers
when a run hangs (`reporter`) reads it. Ranks of a group note the same order, so that the one whose
number is lower is the one that the others wait for. A note costs about two microseconds and holds no tensor.
"""

import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

from rljob_runtime.devices.own_time import OWN_TIME

MOST_GROUPS = 64
"""Told of one process: those that were used last."""


class Shaped(Protocol):
    """A tensor, as far as it is noted."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...
    @property
    def nbytes(self) -> int: ...


class Note:
    """One collective of this process. number: among those of its group, from 1. Times are monotonic."""

    __slots__ = ("awaited", "bytes", "dtype", "error", "number", "shape", "since", "state", "what")

    def __init__(self, what: str, number: int, tensor: Shaped | None) -> None:
        self.what, self.number = what, number
        self.shape = () if tensor is None else tuple(tensor.shape)
        self.dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        self.bytes = 0 if tensor is None else tensor.nbytes
        self.state: Literal["begun", "waits", "done", "failed"] = "begun"
        self.since = time.monotonic()
        self.error = ""
        self.awaited: tuple[int, ...] = ()

    def waits(self) -> None:
        """Whoever began it waits for its end from now on."""
        self.state, self.since = "waits", time.monotonic()

    def ends(self, error: BaseException | None = None) -> None:
        """It is over, well or not."""
        self.state, self.since = ("done" if error is None else "failed"), time.monotonic()
        self.error = "" if error is None else f"{type(error).__name__}: {error}"[:300]


class GroupNotes:
    """Of one group. key: the same on all of its ranks, and no other group's. ranks: of the world, by rank
    in the group; empty where they are not known. rank: this process' in the group."""

    def __init__(self, key: str, *, rank: int, size: int, ranks: Sequence[int] = ()) -> None:
        self.key, self.rank, self.size, self.ranks = key, rank, size, list(ranks)
        self._numbers = itertools.count(1)
        self.last: Note | None = None
        self.waiting: dict[int, Note] = {}

    def begin(self, what: str, tensor: Shaped | None = None) -> Note:
        """A collective that goes on beside this process' work until it is waited for."""
        self.last = note = Note(what, next(self._numbers), tensor)
        return note

    @contextmanager
    def wait(self, note: Note) -> Iterator[None]:
        """Around the wait for it."""
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
    def whole(self, what: str, tensor: Shaped | None = None) -> Iterator[Note]:
        """Around a collective that returns when it is over."""
        note = self.begin(what, tensor)
        with self.wait(note):
            yield note

    def told(self, now: float) -> dict[str, Any]:
        """As JSON: the group, its last collective, and those that are waited for."""
        waiting = sorted(self.waiting.values(), key=lambda note: note.number)
        last = self.last
        return {
            "key": self.key,
            "rank": self.rank,
            "size": self.size,
            "ranks": self.ranks,
            "last": _told(last, now) if last is not None else None,
            "waits": [_told(note, now) for note in waiting if note.state == "waits"],
        }


def _told(note: Note, now: float) -> dict[str, Any]:
    return {
        "what": note.what,
        "number": note.number,
        "shape": list(note.shape),
        "dtype": note.dtype,
        "bytes": note.bytes,
        "state": note.state,
        "seconds": round(max(0.0, now - note.since), 3),
        "error": note.error,
        "awaited": list(note.awaited),
    }


class CollectiveNotes:
    """Those of a process. Any thread may note and read."""

    def __init__(self) -> None:
        self._groups: WeakKeyDictionary[Any, GroupNotes] = WeakKeyDictionary()
        self._pairs: dict[str, GroupNotes] = {}
        self._lock = threading.Lock()

    def of(self, group: Any) -> GroupNotes:
        """Of a group of `torch.distributed`."""
        notes = self._groups.get(group)
        return self._take_up(group) if notes is None else notes

    def pair(self, group: Any, source: int, target: int) -> GroupNotes:
        """Of messages from one rank of a group to another one, which only these two count."""
        notes = self.of(group)
        key = f"{notes.key}, {source} to {target}"
        pair = self._pairs.get(key)
        if pair is None:
            ranks = [notes.ranks[rank] for rank in (source, target)] if notes.ranks else []
            rank = 0 if notes.rank == source else 1
            pair = self._pairs.setdefault(key, GroupNotes(key, rank=rank, size=2, ranks=ranks))
        return pair

    def add(self, owner: Any, notes: GroupNotes) -> GroupNotes:
        """Take up a group that is none of torch.distributed's; it is told as long as its owner lives."""
        with self._lock:
            self._groups[owner] = notes
        return notes

    def told(self) -> list[dict[str, Any]]:
        """All groups as JSON, those that wait first, then by their last collectives, the latest first."""
        now = time.monotonic()
        with self._lock:
            groups = [*self._groups.values(), *self._pairs.values()]
        found = [group.told(now) for group in groups]
        return sorted(found, key=_order)[:MOST_GROUPS]

    def _take_up(self, group: Any) -> GroupNotes:
        import torch.distributed as dist

        try:
            ranks, name = dist.get_process_group_ranks(group), group.group_name
        except (KeyError, RuntimeError, ValueError):  # made past torch.distributed
            ranks, name = [], "own"
        key = f"group {name}, ranks {','.join(map(str, ranks)) or '?'}"
        notes = GroupNotes(key, rank=group.rank(), size=group.size(), ranks=ranks)
        return self.add(group, notes)


def _order(group: Mapping[str, Any]) -> tuple[bool, float]:
    last = group["last"]
    return not group["waits"], last["seconds"] if last else float("inf")


NOTES = CollectiveNotes()
"""This process': a process has one place in each of its groups."""
