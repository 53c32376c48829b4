"""Convert the rows of a partial rollout: a pool's prompts with their samples so far, and finished
samples.

The feeder creates them, the generate state reads and writes them, and the update counts them. No torch:
only numpy columns. A sample's tokens move as ids from pool to pool and into the batch, never as text.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import OUTCOME, RESPONSE_MASK, ROUTES

POOL_STATES = ("generate",)
GROUP_COLUMNS = ("prompt", "task", "position")
BEGUN_COLUMNS = (
    "begun", "begun_logprobs", "begun_versions", "begun_drawn", "begun_ends", "begun_outcome",
    "begun_routes", "ended",
)  # fmt: skip
VERSIONS = "versions"
"""Column of a batch: the version of the weights that drew each token, int32."""
End = Literal["", "stop", "length", "turns"]
ENDS: tuple[End, ...] = ("", "stop", "length", "turns")
"""How a sample has ended, or "" if it has not; the column `ended` stores the index."""

Columns = Mapping[str, NDArray[Any]]


@dataclass(slots=True, kw_only=True)
class PoolSample:
    """A sample, finished or not. logprobs, versions: of each token that the policy drew, from the time
    of the draw. drawn: marks these tokens; empty if the policy drew all. ends: the lengths at which
    its turns ended. outcome, routes: the outcome of its game and the routes of its tokens, as in a
    batch's columns."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    outcome: bytes = b""
    routes: bytes = b""
    end: End = ""

    @property
    def turn(self) -> int:
        """Return the index at which the current turn begins: the first drawn token after the end of
        the last turn."""
        last = self.ends[-1] if self.ends else 0
        drawn = (index for index in range(last, len(self.drawn)) if self.drawn[index])
        return next(drawn, len(self.tokens)) if self.drawn else 0

    @property
    def turns(self) -> int:
        """Return the number of turns, including one that has not ended."""
        return len(self.ends) + (self.turn < len(self.tokens))

    def add(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        drawn: Sequence[bool] = (),
    ) -> None:
        """Append tokens. versions: of the weights that drew each. drawn: given in jobs whose samples
        have turns."""
        self.tokens += tokens
        self.drawn += drawn
        self.logprobs += logprobs
        self.versions += versions

    def pool_columns(self) -> Columns:
        """Return the columns of its row in a pool."""
        return {
            "begun": np.asarray(self.tokens, dtype=np.int32),
            "begun_logprobs": np.asarray(self.logprobs, dtype=np.float32),
            "begun_versions": np.asarray(self.versions, dtype=np.int32),
            "begun_drawn": np.asarray(self.drawn, dtype=np.uint8),
            "begun_ends": np.asarray(self.ends, dtype=np.int32),
            "begun_outcome": np.frombuffer(self.outcome, dtype=np.uint8),
            "begun_routes": np.frombuffer(self.routes, dtype=np.uint8),
            "ended": np.asarray([ENDS.index(self.end)], dtype=np.uint8),
        }

    def batch_columns(self) -> Columns:
        """Return the columns of its row in a batch. The sample must have ended."""
        assert self.end, "only a sample that has ended is trained on"
        columns = {
            "response": np.asarray(self.tokens, dtype=np.int32),
            "rollout_logprobs": np.asarray(self.logprobs, dtype=np.float32),
            VERSIONS: np.asarray(self.versions, dtype=np.int32),
        }
        if self.drawn:
            columns[RESPONSE_MASK] = np.asarray(self.drawn, dtype=np.uint8)
        if self.outcome:
            columns[OUTCOME] = np.frombuffer(self.outcome, dtype=np.uint8)
        if self.routes:
            columns[ROUTES] = np.frombuffer(self.routes, dtype=np.uint8)
        return columns


@dataclass(slots=True, kw_only=True)
class OpenGroup:
    """A prompt and its samples in the pool's rows. position: that in the training stream, from 0."""

    prompt: list[int]
    position: int
    columns: Columns
    rows: list[RowMeta]
    samples: list[PoolSample]

    @property
    def complete(self) -> bool:
        """Return whether every sample has ended."""
        return all(sample.end for sample in self.samples)

    def oldest(self, version: int) -> int:
        """Return the version of its oldest token, or `version` if it has no token."""
        return min([version, *(sample.versions[0] for sample in self.samples if sample.versions)])


def group_columns(prompt: Sequence[int], task: bytes, position: int) -> dict[str, NDArray[Any]]:
    """Return the columns that all samples of a prompt share."""
    return {
        "prompt": np.asarray(prompt, dtype=np.int32),
        "task": np.frombuffer(task, dtype=np.uint8),
        "position": np.asarray([position], dtype=np.int64),
    }


def pool_rows(
    pool: BatchName, index: int, columns: Columns, samples: Sequence[PoolSample], *, version: int
) -> Iterator[NewRow]:
    """Yield the rows of a group in a pool. columns: those of the group. version: assigned to samples
    without a token."""
    for number, sample in enumerate(samples):
        yield NewRow(
            uid=pool.row(index, number),
            group=pool.group(index),
            group_index=index,
            version=sample.versions[0] if sample.versions else version,
            columns=sample.pool_columns(),
            group_columns=columns,
        )


def batch_rows(
    batch: BatchName, index: int, group: OpenGroup, *, reserve_bytes: int
) -> Iterator[NewRow]:
    """Yield the rows of a complete group in a step's batch, each with the version of its oldest token."""
    for number, sample in enumerate(group.samples):
        yield NewRow(
            uid=batch.row(index, number),
            group=batch.group(index),
            group_index=index,
            version=sample.versions[0],
            columns=sample.batch_columns(),
            group_columns=group.columns,
            reserve_bytes=reserve_bytes,
        )


def read_pool(
    dock: DockClient, rows: Sequence[RowMeta], *, shown: Mapping[str, Columns]
) -> dict[int, OpenGroup]:
    """Read the groups of claimed rows, by their index in the pool. shown: columns of pictures by
    group, if prompts have any."""
    columns = dock.read(rows, [*GROUP_COLUMNS, *BEGUN_COLUMNS])
    groups: dict[int, OpenGroup] = {}
    for i, row in enumerate(rows):
        if row.group_index not in groups:
            shared = {name: columns[name].row(i) for name in GROUP_COLUMNS}
            shared |= shown.get(row.group, {})
            groups[row.group_index] = OpenGroup(
                prompt=shared["prompt"].tolist(),
                position=int(shared["position"][0]),
                columns=shared,
                rows=[],
                samples=[],
            )
        cells = {name: columns[name].row(i) for name in BEGUN_COLUMNS}
        sample = PoolSample(
            tokens=cells["begun"].tolist(),
            logprobs=cells["begun_logprobs"].tolist(),
            versions=cells["begun_versions"].tolist(),
            drawn=cells["begun_drawn"].astype(bool).tolist(),
            ends=cells["begun_ends"].tolist(),
            outcome=cells["begun_outcome"].tobytes(),
            routes=cells["begun_routes"].tobytes(),
            end=ENDS[int(cells["ended"][0])],
        )
        groups[row.group_index].rows.append(row)
        groups[row.group_index].samples.append(sample)
    return groups


@dataclass(slots=True, kw_only=True)
class Lineage:
    """The origin of an update's samples. positions: those of its prompts. tokens_by_age: number of
    tokens by age, the number of versions that the weights which drew them were behind. mixed: number
    of samples drawn by several versions."""

    positions: set[int] = field(default_factory=set)
    tokens_by_age: Counter[int] = field(default_factory=Counter)
    mixed: int = 0

    def add(self, dock: DockClient, rows: Sequence[RowMeta], version: int) -> None:
        """Read these rows of a batch and count them. version: that of the weights being trained."""
        columns = dock.read(rows, ["position", VERSIONS])
        self.positions.update(columns["position"].values.tolist())
        ages, counts = np.unique(version - columns[VERSIONS].values, return_counts=True)
        self.tokens_by_age.update(dict(zip(ages.tolist(), counts.tolist(), strict=True)))
        self.mixed += sum(len(np.unique(drawn)) > 1 for drawn in columns[VERSIONS].rows())
