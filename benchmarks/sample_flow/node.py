"""One machine's worker: `python -m sample_flow.node`, told by JSON lines what to do, answering in kind.

It puts its prompts' rows, then is each state in turn: claims some rows, reads them from wherever they
lie, acknowledges them.
"""

import json
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import NewRow

WAIT_SECONDS = 300.0


class Node:
    """number: of this machine. address: the dock's. states: columns that each reads."""

    def __init__(self, number: int, address: dict[str, Any], states: dict[str, list[str]]) -> None:
        self._states = states
        self._clients = {
            state: DockClient(
                DockAddress.from_json(address),
                state=state,
                owner=f"node-{number}",
                timeout_seconds=WAIT_SECONDS,
                full_timeout_seconds=WAIT_SECONDS,
            )
            for state in states
        }
        for client in self._clients.values():
            client.stats()  # connects everywhere
        self._first = next(iter(self._clients.values()))

    def make(self, batch: str, lengths: dict[str, int], first: int, count: int) -> None:
        """Have rows ready, numbers from the first on, which lie at all warehouses in turn."""
        values = {name: np.full(length, 7, dtype=np.int32) for name, length in lengths.items()}
        self._rows = [
            NewRow(uid=f"{batch}/{i}", group=f"{batch}/{i}", group_index=i, columns=values)
            for i in range(first, first + count)
        ]

    def put(self, batch: str, total: int, chunk: int) -> tuple[float, float]:
        """Put the rows; answers when it began and ended."""
        began = time.monotonic()
        for i in range(0, len(self._rows), chunk):
            self._first.put_rows(batch, self._rows[i : i + chunk], total)
        return began, time.monotonic()

    def work(self, batch: str, chunk: int) -> dict[str, Any]:
        """Be each state until it has acknowledged all; answers when, and rows read by warehouse."""
        began = time.monotonic()
        read: Counter[int] = Counter()
        for state, columns in self._states.items():
            client = self._clients[state]
            while not (
                claim := client.claim(batch, limit=chunk, timeout_seconds=WAIT_SECONDS)
            ).done:
                if columns:
                    client.read(claim.rows, columns)
                    read.update(row.warehouse for row in claim.rows)
                client.acknowledge(claim.rows)
        return {"began": began, "ended": time.monotonic(), "read": read}

    def stats(self) -> dict[str, Any]:
        """What each server reports."""
        return {role: dict(report) for role, report in self._first.stats().servers.items()}

    def close(self) -> None:
        """Disconnect."""
        for client in self._clients.values():
            client.close()


def main() -> None:
    """Answer each line of standard input."""
    node: Any = None
    for line in sys.stdin:
        order = json.loads(line)
        call = order.pop("do")
        if call == "open":
            node, answer = Node(**order), None
        else:
            answer = getattr(node, call)(**order)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
