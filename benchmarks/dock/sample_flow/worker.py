"""A process of one side: `python -m …sample_flow.worker`, told by JSON lines what to do, answering in kind.

`sample_flow.processes` starts it in the side's environment. The clock runs here, around the calls alone.
"""

import time
from typing import Any

from benchmarks.dock.sample_flow.orders import obey
from benchmarks.dock.sample_flow.payload import WORD, Column, Payload, num_bytes, sum_of_words
from benchmarks.dock.sample_flow.side import Host, Side, open_host, open_side

GIVE_UP_SECONDS = 120.0


class Worker:
    """Hosts systems or is a producer or a consumer of them; each method is a command."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._sides: dict[str, Side] = {}
        self._samples: dict[Payload, dict[str, Column]] = {}
        self._prepared: dict[str, tuple[list[Any], int]] = {}

    def host(self, side: str, **options: Any) -> Any:
        """Start a system; answers its address."""
        self._hosts[side] = open_host(side, options)
        return self._hosts[side].address

    def ray(self, memory: int) -> str:
        """Start Ray here, with an object store of so many bytes; answers its address."""
        import ray

        context = ray.init(
            address="local",
            num_cpus=16,
            object_store_memory=memory,
            include_dashboard=False,
            namespace="benchmark",
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            logging_level="error",
        )
        return str(context.address_info["gcs_address"])

    def join(self, side: str, address: Any) -> None:
        """Connect to a system."""
        self._sides[side] = open_side(side, address)

    def prepare(self, side: str, batch: str, payload: list[Any], chunk: int) -> dict[str, Any]:
        """Have a batch ready to put, cut into chunks; answers bytes and sum of each column."""
        kind = Payload(*payload)
        if kind not in self._samples:
            self._samples[kind] = kind.make()
        columns = self._samples[kind]
        chunks = []
        for first in range(0, kind.num_rows, chunk):
            part = {name: c.rows(first, first + chunk) for name, c in columns.items()}
            chunks.append(self._sides[side].prepare(batch, first, part))
        self._prepared[batch] = (chunks, kind.num_rows)
        return {
            name: [num_bytes(columns, [name]), sum_of_words([column.values])]
            for name, column in columns.items()
        }

    def put(self, side: str, batch: str, states: list[str]) -> dict[str, Any]:
        """Put a prepared batch, chunk by chunk."""
        chunks, total = self._prepared.pop(batch)
        system, seconds = self._sides[side], []
        began = time.monotonic()
        for chunk in chunks:
            started = time.perf_counter()
            system.put(batch, chunk, total=total, states=states)
            seconds.append(time.perf_counter() - started)
        return {"began": began, "ended": time.monotonic(), "seconds": seconds}

    def take(
        self,
        side: str,
        batch: str,
        state: str,
        columns: list[str],
        *,
        limit: int,
        total: int,
        way: str,
    ) -> dict[str, Any]:
        """Claim, get and sum up rows until so many came. way "claim": claim them only.

        claims: seconds of each claim that gave rows. gets: of getting and summing.
        """
        system, taken, words = self._sides[side], 0, 0
        claims: list[float] = []
        gets: list[float] = []
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while taken < total:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{side} gave {taken} of {total} rows of {batch} to {state}")
            started = time.perf_counter()
            found = system.claim(batch, state, columns, min(limit, total - taken))
            claimed = time.perf_counter()
            if found is None:
                continue
            claim, num_rows = found
            claims.append(claimed - started)
            taken += num_rows
            if way != "claim":
                with system.get(claim, columns, way) as arrays:
                    words += sum_of_words(arrays)
                gets.append(time.perf_counter() - claimed)
            system.finish(state, claim)
        return {"claims": claims, "gets": gets, "words": words & WORD, "ended": time.monotonic()}

    def drop(self, side: str, batch: str) -> None:
        """Leave nothing of a batch."""
        self._sides[side].drop(batch)

    def close(self) -> None:
        """End what was started here."""
        for host in self._hosts.values():
            host.close()


if __name__ == "__main__":
    obey(Worker())
