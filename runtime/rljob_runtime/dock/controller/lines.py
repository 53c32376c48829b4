"""Rows and groups that may be claimed, in the order in which they are given. Pure; `batch_ledger` asks it.

What stands in a line is not taken out of it when it is claimed by another way, or goes: whoever takes from
the front asks which may still be taken, and forgets those before them. What is put in line gets a stamp,
which it keeps elsewhere: with another one since, an old place counts no more.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from rljob_runtime.dock.growing import Array

Check = Callable[[int, Array], Array]
"""Stamp and keys: which of these may be taken."""
LOOKED_AT = 32
"""Asked about at a time, at least."""
NOBODY = np.zeros(0, dtype=np.int64)


class Line:
    """Keys in the order in which they are given."""

    def __init__(self) -> None:
        self._runs: deque[tuple[int, Array | range]] = deque()

    def add(self, stamp: int, keys: Array) -> None:
        """Put them at the end."""
        self._runs.append((stamp, _short(keys)))

    def add_first(self, stamp: int, keys: Array) -> None:
        """Put them at the front."""
        self._runs.appendleft((stamp, _short(keys)))

    def drop(self, which: Callable[[Array], Array]) -> None:
        """Those for which it says so are in line no more."""
        runs = [(stamp, _array(keys)) for stamp, keys in self._runs]
        self._runs = deque((stamp, keys[~which(keys)]) for stamp, keys in runs)

    def first(self, most: int, may: Check, forget: Check | None = None) -> Array:
        """Up to so many that may be taken, which stay here. Those before the first of them are left out for
        good; forget: is told of them."""
        found: list[Array] = []
        missing = most
        while self._runs and missing > 0 and not found:
            stamp, run = self._runs.popleft()
            piece = _array(run[: max(LOOKED_AT, missing)])
            good = may(stamp, piece)
            if len(piece) >= missing and good.all():
                self._runs.appendleft((stamp, run))
                return piece[:most]
            bad = int(good.argmax()) if good.any() else len(piece)
            if forget is not None:
                forget(stamp, piece[:bad])
            if bad < len(run):
                self._runs.appendleft((stamp, run[bad:]))
            if bad < len(piece):
                found.append(piece[good])
                missing -= len(found[0])
                found += self._behind(len(piece) - bad, missing, may)
        taken = np.concatenate(found) if len(found) > 1 else found[0] if found else NOBODY
        return taken[:most]

    def _behind(self, looked_at: int, missing: int, may: Check) -> list[Array]:
        """More, behind so many in front that were looked at."""
        found: list[Array] = []
        for stamp, run in self._runs:
            place, looked_at = looked_at, 0
            while place < len(run) and missing > 0:
                piece = _array(run[place : place + max(LOOKED_AT, missing)])
                good = piece[may(stamp, piece)]
                found.append(good)
                missing -= len(good)
                place += len(piece)
            if missing <= 0:
                break
        return found


def _short(keys: Array) -> Array | range:
    """Keys that follow each other take no room."""
    first, last = (int(keys[0]), int(keys[-1])) if len(keys) else (0, -2)
    if last - first == len(keys) - 1 and (keys[1:] > keys[:-1]).all():
        return range(first, last + 1)
    return keys


def _array(keys: Array | range) -> Array:
    return np.arange(keys.start, keys.stop) if isinstance(keys, range) else keys


def in_turns(sizes: Sequence[int]) -> tuple[Array, Array]:
    """Who of several takes when one after the other takes one, each until it has none: (who, its which)."""
    who = np.repeat(np.arange(len(sizes)), sizes)
    which = np.concatenate([NOBODY, *(np.arange(size) for size in sizes)])
    order = np.lexsort((who, which))
    return who[order], which[order]
