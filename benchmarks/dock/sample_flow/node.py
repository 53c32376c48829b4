"""One machine's worker, of any system: `python -m …sample_flow.node`, told what to do as in `orders`.

It puts its prompts' rows, then is each state in turn: claims some rows, reads them from wherever they
lie, is done with them.
"""

import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.dock.sample_flow.orders import obey
from benchmarks.dock.sample_flow.payload import Column
from benchmarks.dock.sample_flow.side import SpreadSide, open_side


class Node:
    """Each method is a command; `open` comes first."""

    _side: SpreadSide
    _states: dict[str, list[str]]
    _prepared: Any

    def open(self, side: str, address: Any, states: dict[str, list[str]]) -> None:
        """Connect. states: columns that each reads, none for one that only acknowledges."""
        self._side, self._states = open_side(side, address), states

    def make(self, batch: str, lengths: dict[str, int], first: int, count: int) -> None:
        """Have rows ready to put, numbers from the first on."""
        columns = {
            name: Column(
                np.full(count * length, 7, dtype=np.int32), np.full(count, length, dtype=np.int64)
            )
            for name, length in lengths.items()
        }
        self._prepared = self._side.prepare(batch, first, columns)

    def put(self, batch: str, total: int) -> tuple[float, float]:
        """Put the rows, all at once; answers when it began and ended."""
        began = time.monotonic()
        self._side.put(batch, self._prepared, total=total, states=list(self._states))
        return began, time.monotonic()

    def work(self, batch: str, limit: int) -> dict[str, Any]:
        """Be each state until all rows, which lie there, are done; answers when, and what was read, as
        rows by server."""
        began = time.monotonic()
        read: Counter[int] = Counter()
        for state, columns in self._states.items():
            while (found := self._side.claim(batch, state, columns, limit)) and found[1]:
                claim, _ = found
                if columns:
                    with self._side.get(claim, columns, "read"):
                        read.update(self._side.places(claim))
                self._side.finish(state, claim)
        return {"began": began, "ended": time.monotonic(), "read": read}

    def held(self) -> list[int]:
        """See SpreadSide."""
        return self._side.held_bytes()

    def drop(self, batch: str) -> None:
        """Leave nothing of a batch."""
        self._side.drop(batch)

    def close(self) -> None:
        """Its connections end with it."""


if __name__ == "__main__":
    obey(Node())
