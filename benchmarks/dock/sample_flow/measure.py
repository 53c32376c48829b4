"""What one side does with one payload: a whole batch, a stream to three states, small operations.

Every reader sums up all bytes, and the sums must be those of what was put.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.dock.sample_flow.payload import COLUMNS, READERS, WORD, Payload
from benchmarks.dock.sample_flow.processes import Group

CHUNK_ROWS = 32
CLAIMED_ROWS = 16
CLAIMED_OF = Payload(1024, 64)
CLAIM_BATCHES = 4
SINGLE = Payload(256, 512)
ONE_READER: dict[str, tuple[str, ...]] = {"update": COLUMNS}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A side of a group. way: how it gets columns, see `sample_flow.side.WAYS`."""

    group: Group = field(repr=False)
    side: str
    label: str
    way: str

    def whole(self, payload: Payload) -> dict[str, float]:
        """MB/s of one put of all rows, and of getting and reading them at once."""
        batch, facts = self._prepare(payload, payload.num_rows)
        put = self.group.producer.ask("put", side=self.side, batch=batch, states=[*ONE_READER])
        (taken,) = self._take(batch, ONE_READER, payload, limit=payload.num_rows)
        self._finish(batch, facts, ONE_READER, [taken])
        size = _bytes(facts, COLUMNS) / 1e6
        return {"put": size / put["seconds"][0], "get": size / sum(taken["gets"])}

    def stream(self, payload: Payload) -> float:
        """MB/s that reach three states while a producer writes chunks of 32 rows."""
        batch, facts = self._prepare(payload, CHUNK_ROWS)
        self._tell(batch, READERS, payload, limit=CHUNK_ROWS)
        put = self.group.producer.ask("put", side=self.side, batch=batch, states=[*READERS])
        taken = [self.group.consumers[state].answer() for state in READERS]
        self._finish(batch, facts, READERS, taken)
        size = sum(_bytes(facts, columns) for columns in READERS.values()) / 1e6
        return size / (max(t["ended"] for t in taken) - put["began"])

    def claims(self) -> list[float]:
        """Seconds of claims of 16 of 1024 rows, without their data."""
        seconds: list[float] = []
        for _ in range(CLAIM_BATCHES):
            batch, _ = self._prepare(CLAIMED_OF, CLAIMED_OF.num_rows)
            self.group.producer.ask("put", side=self.side, batch=batch, states=[*ONE_READER])
            (taken,) = self._take(batch, ONE_READER, CLAIMED_OF, limit=CLAIMED_ROWS, way="claim")
            seconds += taken["claims"]
            self._drop(batch)
        return seconds

    def singles(self) -> tuple[list[float], list[float]]:
        """Seconds of puts of one row of 512 tokens, and of claiming and getting one."""
        batch, facts = self._prepare(SINGLE, 1)
        put = self.group.producer.ask("put", side=self.side, batch=batch, states=[*ONE_READER])
        (taken,) = self._take(batch, ONE_READER, SINGLE, limit=1)
        self._finish(batch, facts, ONE_READER, [taken])
        both = [claim + get for claim, get in zip(taken["claims"], taken["gets"], strict=True)]
        return put["seconds"], both

    def _prepare(self, payload: Payload, chunk: int) -> tuple[str, dict[str, Any]]:
        batch = f"batch-{next(_numbers)}"
        arguments = [payload.num_rows, payload.max_length, payload.ragged]
        facts = self.group.producer.ask(
            "prepare", side=self.side, batch=batch, payload=arguments, chunk=chunk
        )
        return batch, facts

    def _take(self, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
        readers = self._tell(*arguments, **options)
        return [self.group.consumers[state].answer() for state in readers]

    def _tell(
        self,
        batch: str,
        readers: dict[str, tuple[str, ...]],
        payload: Payload,
        *,
        limit: int,
        way: str = "",
    ) -> list[str]:
        for state, columns in readers.items():
            self.group.consumers[state].tell(
                "take",
                side=self.side,
                batch=batch,
                state=state,
                columns=columns,
                limit=limit,
                total=payload.num_rows,
                way=way or self.way,
            )
        return list(readers)

    def _finish(
        self,
        batch: str,
        facts: dict[str, Any],
        readers: dict[str, tuple[str, ...]],
        taken: Sequence[dict[str, Any]],
    ) -> None:
        for (state, columns), found in zip(readers.items(), taken, strict=True):
            wanted = sum(facts[name][1] for name in columns) & WORD
            assert found["words"] == wanted, f"{self.label} gave {state} other bytes than were put"
        self._drop(batch)

    def _drop(self, batch: str) -> None:
        self.group.producer.ask("drop", side=self.side, batch=batch)


def _bytes(facts: dict[str, Any], columns: Sequence[str]) -> int:
    return sum(int(facts[name][0]) for name in columns)
