"""Rows of a partial rollout: a pool's prompts with what was made of them, and finished samples.

Made by the feeder, read and put by the generate state, counted by the update. No torch: numpy columns
alone. A sample's tokens go as ids from pool to pool and into the batch, never through text.
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
"""In a batch: the version of the weights that drew each token, int32."""
End = Literal["", "stop", "length", "turns"]
ENDS: tuple[End, ...] = ("", "stop", "length", "turns")
"""How a sample has ended, if it has; by their numbers in the column `ended`."""

Columns = Mapping[str, NDArray[Any]]


@dataclass(slots=True, kw_only=True)
class OpenSample:
    """A sample as far as it has come. logprobs, versions: of each token that the policy drew, when it did.
    drawn: which these are, empty where it drew all; ends: where its turns ended. outcome: of its game,
    routes: of its tokens, as in a batch's columns."""

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
        """Where the present turn begins: behind what follows the last one that ended."""
        last = self.ends[-1] if self.ends else 0
        drawn = (place for place in range(last, len(self.drawn)) if self.drawn[place])
        return next(drawn, len(self.tokens)) if self.drawn else 0

    @property
    def turns(self) -> int:
        """That ended, and one that has not."""
        return len(self.ends) + (self.turn < len(self.tokens))

    def add(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        drawn: Sequence[bool] = (),
    ) -> None:
        """More tokens. versions: of the weights that drew each; drawn: in jobs whose samples have turns."""
        self.tokens += tokens
        self.drawn += drawn
        self.logprobs += logprobs
        self.versions += versions

    def pool_columns(self) -> Columns:
        """Its row in a pool."""
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
        """Its row in a batch, once it has ended."""
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
    """A prompt and its samples, in the pool's rows. position: in the training stream, from 0."""

    prompt: list[int]
    position: int
    columns: Columns
    rows: list[RowMeta]
    samples: list[OpenSample]

    @property
    def complete(self) -> bool:
        """True when every sample has ended."""
        return all(sample.end for sample in self.samples)

    def oldest(self, version: int) -> int:
        """Version of its oldest token; `version` where it has none."""
        return min([version, *(sample.versions[0] for sample in self.samples if sample.versions)])


def group_columns(prompt: Sequence[int], task: bytes, position: int) -> dict[str, NDArray[Any]]:
    """What the samples of a prompt share."""
    return {
        "prompt": np.asarray(prompt, dtype=np.int32),
        "task": np.frombuffer(task, dtype=np.uint8),
        "position": np.asarray([position], dtype=np.int64),
    }


def pool_rows(
    pool: BatchName, place: int, columns: Columns, samples: Sequence[OpenSample], *, version: int
) -> Iterator[NewRow]:
    """Rows of a group in a pool. columns: the group's. version: of samples without a token."""
    for number, sample in enumerate(samples):
        yield NewRow(
            uid=pool.row(place, number),
            group=pool.group(place),
            group_index=place,
            version=sample.versions[0] if sample.versions else version,
            columns=sample.pool_columns(),
            group_columns=columns,
        )


def batch_rows(
    batch: BatchName, place: int, group: OpenGroup, *, reserve_bytes: int
) -> Iterator[NewRow]:
    """Rows of a complete group in a step's batch; each as old as its oldest token."""
    for number, sample in enumerate(group.samples):
        yield NewRow(
            uid=batch.row(place, number),
            group=batch.group(place),
            group_index=place,
            version=sample.versions[0],
            columns=sample.batch_columns(),
            group_columns=group.columns,
            reserve_bytes=reserve_bytes,
        )


def read_pool(
    dock: DockClient, rows: Sequence[RowMeta], *, shown: Mapping[str, Columns]
) -> dict[int, OpenGroup]:
    """The groups of claimed rows by their places in the pool. shown: columns of pictures by group, where
    prompts show any."""
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
        begun = {name: columns[name].row(i) for name in BEGUN_COLUMNS}
        sample = OpenSample(
            tokens=begun["begun"].tolist(),
            logprobs=begun["begun_logprobs"].tolist(),
            versions=begun["begun_versions"].tolist(),
            drawn=begun["begun_drawn"].astype(bool).tolist(),
            ends=begun["begun_ends"].tolist(),
            outcome=begun["begun_outcome"].tobytes(),
            routes=begun["begun_routes"].tobytes(),
            end=ENDS[int(begun["ended"][0])],
        )
        groups[row.group_index].rows.append(row)
        groups[row.group_index].samples.append(sample)
    return groups


@dataclass(slots=True, kw_only=True)
class Lineage:
    """Where the samples of an update came from. positions: of its prompts. tokens_by_age: by the number
    of versions that the weights which drew them were behind. mixed: samples of several versions."""

    positions: set[int] = field(default_factory=set)
    tokens_by_age: Counter[int] = field(default_factory=Counter)
    mixed: int = 0

    def add(self, dock: DockClient, rows: Sequence[RowMeta], version: int) -> None:
        """Read these rows of a batch. version: of the weights that they train."""
        columns = dock.read(rows, ["position", VERSIONS])
        self.positions.update(columns["position"].values.tolist())
        ages, counts = np.unique(version - columns[VERSIONS].values, return_counts=True)
        self.tokens_by_age.update(dict(zip(ages.tolist(), counts.tolist(), strict=True)))
        self.mixed += sum(len(np.unique(drawn)) > 1 for drawn in columns[VERSIONS].rows())
