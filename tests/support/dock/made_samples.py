"""A batch of made-up samples that every run gets alike, and the work of all states but the update."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import EXCLUDED, state_graph

GROUPS, SAMPLES, RANKS = 8, 4, 2


def make_spec(
    *,
    algorithm: str = "grpo",
    kl: float = 0.0,
    params: dict[str, Any] | None = None,
    mode: str | None = None,
    max_staleness: int | None = None,
    devices: int = RANKS,
    degrees: dict[str, int] | None = None,
    balance: str = "none",
    **batch: int,
) -> ResolvedSpec:
    job = {**SMALL_JOB, "spec": {**SMALL_JOB["spec"]}}
    given = {"klCoefficient": kl, **(params or {})}
    job["spec"]["algorithm"] = {"name": algorithm, "params": given}
    job["spec"]["accelerator"] = {"type": "emulated", "devicesPerNode": devices}
    of_update = {"parallelism": degrees or {}, "balance": balance}
    job["spec"]["update"] = {**SMALL_JOB["spec"]["update"], **of_update}
    one = {} if "microBatchTokens" in batch else {"microBatchSize": 1}
    job["spec"]["batch"] = {**SMALL_JOB["spec"]["batch"], **one, **batch}
    if algorithm == "distillation":
        job["spec"]["teacher"] = {"path": "larger"}
    if mode is not None:
        job["spec"]["flow"] = {"mode": mode}
    if max_staleness is not None:
        job["spec"]["accelerator"] = {"type": "emulated", "devicesPerNode": devices + 1}
        job["spec"]["placement"] = {"mode": "separated", "updateDevices": devices}
        job["spec"]["flow"] = {"mode": "async", "maxStaleness": max_staleness}
    return resolve(read_job(job)).spec


@dataclass
class Samples:
    """Made-up samples of a batch, which every run gets alike. versions: that drew them, in turn. more:
    tokens that the groups' responses have beside their own, in turn. failed: groups whose scores did."""

    spec: ResolvedSpec
    batch: BatchName
    versions: tuple[int, ...] = (0,)
    more: tuple[int, ...] = (0,)
    failed: tuple[int, ...] = ()

    def rows(self) -> list[NewRow]:
        prompts = np.random.default_rng(1).integers(0, 48, (GROUPS, 5), dtype=np.int32)
        task = np.zeros(1, dtype=np.uint8)
        return [
            NewRow(
                uid=self.batch.row(g, s),
                group=self.batch.group(g),
                group_index=g,
                version=self.versions[(g * SAMPLES + s) % len(self.versions)],
                group_columns={"prompt": prompts[g], "task": task},
            )
            for g in range(GROUPS)
            for s in range(SAMPLES)
        ]

    def columns(self, rows: Sequence[RowMeta]) -> Callable[[Iterable[str]], dict[str, Ragged]]:
        def values(row: RowMeta, name: str) -> NDArray[Any]:
            numbers = np.random.default_rng([row.group_index, row.sample])
            more = self.more[row.group_index % len(self.more)]
            tokens = numbers.integers(0, 48, 2 + row.sample + more, dtype=np.int32)
            if name == "response":
                return tokens
            if name == "reward":  # a third of the groups teach nothing
                good = row.group_index % 3 and row.sample < 2
                reward = EXCLUDED if row.group_index in self.failed else float(good)
                return np.full(1, reward, dtype=np.float32)
            return numbers.normal(-3.9, 0.3, len(tokens)).astype(np.float32)

        return lambda names: {
            name: Ragged.from_rows([values(row, name) for row in rows]) for name in names
        }

    def write(
        self, dock: Any, order: Iterable[int], *, pause: float, elsewhere: Iterable[str] = ()
    ) -> None:
        """Answer the prompts group by group in this order, then do the work of every other state but the
        update and those elsewhere."""
        others = {"update", *elsewhere}
        states = {s.name: s for s in state_graph(self.spec).states if s.name not in others}
        clients = {name: dock.client(name, f"{name}-0") for name in states}
        claim = clients["generate"].claim(str(self.batch), share=(0, 1), timeout_seconds=10)
        by_group = {g: [r for r in claim.rows if r.group_index == g] for g in range(GROUPS)}
        for group in order:
            clients["generate"].write(
                by_group[group], self.columns(by_group[group])(states["generate"].writes)
            )
            for name in set(states) - {"generate"}:
                rows = clients[name].claim(str(self.batch), timeout_seconds=10).rows
                clients[name].write(rows, self.columns(rows)(states[name].writes))
            time.sleep(pause)
