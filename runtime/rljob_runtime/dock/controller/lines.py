"""Queues of rows and groups that may be claimed, in the order in which they are granted. Pure; used by
`batch_ledger`.

An entry stays in its queue when it is claimed in another way or disappears. The reader checks which entries
at the front are still valid and drops the others. Each entry has a stamp that is also stored with the row or
group; an entry with an outdated stamp is no longer valid.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from rljob_runtime.dock.growing import Array

Check = Callable[[int, Array], Array]
"""A predicate of a stamp and keys: a mask of the keys that may still be taken."""
MIN_CHECKED = 32
"""Minimum number of keys that are checked at a time."""
NO_KEYS = np.zeros(0, dtype=np.int64)


class ReadyQueue:
    """Keys in the order in which they are granted."""

    def __init__(self) -> None:
        self._runs: deque[tuple[int, Array | range]] = deque()

    def add(self, stamp: int, keys: Array) -> None:
        """Append keys at the end."""
        self._runs.append((stamp, _compact(keys)))

    def add_first(self, stamp: int, keys: Array) -> None:
        """Insert keys at the front."""
        self._runs.appendleft((stamp, _compact(keys)))

    def drop(self, is_dropped: Callable[[Array], Array]) -> None:
        """Remove the keys that the predicate selects."""
        runs = [(stamp, _array(keys)) for stamp, keys in self._runs]
        self._runs = deque((stamp, keys[~is_dropped(keys)]) for stamp, keys in runs)

    def first(self, most: int, is_valid: Check, forget: Check | None = None) -> Array:
        """Return up to `most` keys that may be taken; they stay in the queue.

        Keys before the first valid one are removed for good, and passed to `forget`.
        """
        chunks: list[Array] = []
        missing = most
        while self._runs and missing > 0 and not chunks:
            stamp, run = self._runs.popleft()
            chunk = _array(run[: max(MIN_CHECKED, missing)])
            valid = is_valid(stamp, chunk)
            if len(chunk) >= missing and valid.all():
                self._runs.appendleft((stamp, run))
                return chunk[:most]
            num_invalid = int(valid.argmax()) if valid.any() else len(chunk)
            if forget is not None:
                forget(stamp, chunk[:num_invalid])
            if num_invalid < len(run):
                self._runs.appendleft((stamp, run[num_invalid:]))
            if num_invalid < len(chunk):
                chunks.append(chunk[valid])
                missing -= len(chunks[0])
                chunks += self._next_valid(len(chunk) - num_invalid, missing, is_valid)
        taken = np.concatenate(chunks) if len(chunks) > 1 else chunks[0] if chunks else NO_KEYS
        return taken[:most]

    def _next_valid(self, num_checked: int, missing: int, is_valid: Check) -> list[Array]:
        """Return further valid keys behind the `num_checked` keys at the front."""
        chunks: list[Array] = []
        for stamp, run in self._runs:
            offset, num_checked = num_checked, 0
            while offset < len(run) and missing > 0:
                chunk = _array(run[offset : offset + max(MIN_CHECKED, missing)])
                valid_keys = chunk[is_valid(stamp, chunk)]
                chunks.append(valid_keys)
                missing -= len(valid_keys)
                offset += len(chunk)
            if missing <= 0:
                break
        return chunks


def _compact(keys: Array) -> Array | range:
    """Return contiguous keys as a range, which takes no memory."""
    first, last = (int(keys[0]), int(keys[-1])) if len(keys) else (0, -2)
    if last - first == len(keys) - 1 and (keys[1:] > keys[:-1]).all():
        return range(first, last + 1)
    return keys


def _array(keys: Array | range) -> Array:
    return np.arange(keys.start, keys.stop) if isinstance(keys, range) else keys


def in_turns(sizes: Sequence[int]) -> tuple[Array, Array]:
    """Return an interleaving of several lists of these sizes: (list, index in the list) of each item.

    Each list contributes one item a round until it is exhausted.
    """
    source = np.repeat(np.arange(len(sizes)), sizes)
    index = np.concatenate([NO_KEYS, *(np.arange(size) for size in sizes)])
    order = np.lexsort((source, index))
    return source[order], index[order]
