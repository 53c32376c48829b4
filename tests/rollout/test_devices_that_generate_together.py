"""Generate states of devices that share a model: one reads and writes for its replica, all generate, and
what fails on one fails on all whose passes meet."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked_docks import ForkedDock
from forked_ranks import on_ranks
from parallel_training import shape_of
from rollouts import make_groups, sampling
from rollouts_on_ranks import ARGUMENTS, engine_on_rank, grid_of
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.errors import DockError, DockLost
from rljob_runtime.prompts.pool_rows import (
    BEGUN_COLUMNS,
    POOL_STATES,
    PoolSample,
    group_columns,
    pool_rows,
)
from rljob_runtime.prompts.pools import Pools
from rljob_runtime.prompts.rounds import Round
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import ROUTES, state_graph
from rljob_runtime.worker.generate import GenerateState
from rljob_runtime.worker.partial_rollout import PartialRolloutState
from rljob_runtime.worker.rollout_replica import RolloutReplica

SaveReference = Callable[..., tuple[Any, Path]]
PROMPTS, SAMPLES, BUDGET = 8, 2, 5
LONGEST = 12
SAMPLING = sampling(max_response_length=LONGEST)
BATCH = BatchName(kind="train", step=1)
GROUPS = make_groups((5, 1, 17, 9, 2, 3, 7, 4) * 3, samples=1)
LAYOUTS = [
    ("qwen3", {"tensor": 2, "data": 2}),
    ("qwen3", {"pipeline": 2}),
    ("qwen3-moe", {"data": 2, "expert": 2}),
]


def make_spec(*, partial: bool, routed: bool) -> ResolvedSpec:
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"]["update"]["routerReplay"] = routed
    if partial:
        job["spec"]["flow"] = {"partialRollout": {"budgetTokens": BUDGET}}
    job["spec"]["flow"] = {**job["spec"].get("flow", {}), "stageTimeoutSeconds": 30}
    sizes = {"globalBatchSize": PROMPTS, "samplesPerPrompt": SAMPLES}
    job["spec"]["batch"] |= {**sizes, "maxPromptLength": 17, "maxResponseLength": LONGEST}
    return resolve(read_job(job)).spec


@dataclass
class Bench:
    """A step's generation over a dock. devices: of the layout, each with its own view of the replica."""

    path: Path
    degrees: dict[str, int]
    partial: bool = False
    fed: int | None = None
    dock: ForkedDock = field(init=False)
    route_bytes: int = field(init=False)
    engine: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.route_bytes = shape_of(self.path).route_bytes
        self.spec = make_spec(partial=self.partial, routed=self.route_bytes > 0)
        self.engine = {"keeps_routes": self.route_bytes > 0}
        self.pools = Pools.of(self.spec)
        self.rounds = [self.pools.make_round(step) for step in (1, 2)] if self.pools else []
        self.grid = grid_of(**self.degrees)

    def on_devices(self, *, fails: int | None = None) -> tuple[list[str], list[list[Any]]]:
        """What each device's generation ended with, and all rows that there are then. fails: a rank that
        cannot write."""

        def device(rank: int) -> str:
            engine = engine_on_rank(self.path, self.grid, **self.engine)
            groups = RolloutGroups(self.grid, timeout_seconds=60)
            replica = RolloutReplica(engine=engine, groups=groups)
            return self._run(replica, rank // self._each, writes=rank != fails)

        return self._around(lambda: on_ranks(self.grid.size, device, seconds=200))

    def alone(self) -> tuple[list[str], list[list[Any]]]:
        """The same of devices that hold the whole model, one for each replica."""

        def all_replicas() -> list[str]:
            replicas = range(self.grid.size // self._each)
            engines = [TorchRollout(self.path, **ARGUMENTS, **self.engine) for _ in replicas]
            return [self._run(RolloutReplica(engine=engines[r]), r) for r in replicas]

        return self._around(all_replicas)

    @property
    def _each(self) -> int:
        return self.grid.degrees.replica_devices

    def _around(self, work: Callable[[], list[str]]) -> tuple[list[str], list[list[Any]]]:
        with ForkedDock(state_graph(self.spec).states) as self.dock:
            self._feed(self.dock.client("feed", "feeder"))
            ended = work()
            return ended, [] if any("Dock" in end for end in ended) else self._rows()

    def _run(self, replica: RolloutReplica, number: int, *, writes: bool = True) -> str:
        client = self.dock.client("generate", f"replica-{number}")
        if not writes:
            client = Mute(client)  # type: ignore[assignment]
        share = (number, self.grid.size // self._each)
        try:
            if self.rounds:
                state = PartialRolloutState(
                    replica=replica, dock=client, spec=self.spec, route_bytes=self.route_bytes
                )
                report = state.run(BATCH, self.rounds[0], SAMPLING, share)
            else:
                seconds = 2.0 if self.fed else 30.0
                whole = GenerateState(
                    replica=replica,
                    dock=client,
                    run_seed=3,
                    prompts=4,
                    timeout_seconds=seconds,
                    routed=self.route_bytes > 0,
                )
                report = whole.run(BATCH, SAMPLING, share)
        except DockError as error:
            return f"{type(error).__name__}: {error}"
        return f"{report.samples} samples, {report.going_on} go on"

    def _feed(self, feeder: DockClient) -> None:
        if self.rounds:
            for now in self.rounds:
                rows = list(self._fresh(now))
                feeder.put_rows(str(now.pool), rows, total=now.groups * SAMPLES, states=POOL_STATES)
            return
        rows = []
        for prompt, group in enumerate(GROUPS[: self.fed or PROMPTS]):
            shared: dict[str, Any] = {
                "prompt": np.asarray(group.token_ids, dtype=np.int32),
                "task": np.frombuffer(b"{}", dtype=np.uint8),
            }
            rows += [
                NewRow(
                    uid=BATCH.row(prompt, sample),
                    group=BATCH.group(prompt),
                    group_index=prompt,
                    group_columns=shared,
                )
                for sample in range(SAMPLES)
            ]
        feeder.put_rows(str(BATCH), rows, total=PROMPTS * SAMPLES)

    def _fresh(self, now: Round) -> Iterator[NewRow]:
        """The rows of a pool that no round before has put there."""
        for place, position in enumerate(now.fresh, now.groups - len(now.fresh)):
            columns = group_columns(GROUPS[position].token_ids, b"{}", position)
            samples = [PoolSample() for _ in range(SAMPLES)]
            yield from pool_rows(now.pool, place, columns, samples, version=0)

    def _rows(self) -> list[list[Any]]:
        """Prompt, response, log-probs and routes of the batch's rows, and what goes on."""
        found = []
        routes = [ROUTES] if self.route_bytes else []
        batches = [("reward", str(BATCH), ["prompt", "response", "rollout_logprobs", *routes])]
        if self.rounds:
            columns = ["prompt", *BEGUN_COLUMNS[:2], "begun_routes"]
            batches.append(("generate", str(self.rounds[1].pool), columns))
        for state, name, columns in batches:
            client = self.dock.client(state, "reader")
            claim = client.claim(name, share=(0, 1), timeout_seconds=10)
            read = client.read(claim.rows, columns)
            for i, row in enumerate(claim.rows):
                values = [read[column].row(i).tolist() for column in columns]
                found.append([state, row.group_index, row.sample, *values])
        return sorted(found)


class Mute:
    """A client of the dock that reads, and is not there any more when it is to write."""

    def __init__(self, client: DockClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "put_rows"):
            return self._lose
        return getattr(self._client, name)

    def _lose(self, *_: Any, **__: Any) -> None:
        raise DockLost("the warehouse is gone")


def assert_same(found: list[list[Any]], expected: list[list[Any]]) -> None:
    assert [row[:5] for row in found] == [row[:5] for row in expected]
    assert [row[6:] for row in found] == [row[6:] for row in expected]
    for row, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(row[5], other[5], atol=1e-5)
        if row[6:] and row[6]:  # of all tokens but the last one
            assert len(row[6]) % (len(row[3]) + len(row[4]) - 1) == 0


@pytest.mark.parametrize(("family", "degrees"), LAYOUTS)
@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_devices_that_share_a_model_write_what_whole_models_do(
    family: str, degrees: dict[str, int], partial: bool, save_reference: SaveReference
) -> None:
    bench = Bench(save_reference(family)[1], degrees, partial=partial)

    ended, rows = bench.on_devices()

    expected_ends, expected_rows = bench.alone()
    assert_same(rows, expected_rows)
    each = bench.grid.degrees.replica_devices
    assert ended[::each] == expected_ends
    assert {end for rank, end in enumerate(ended) if rank % each} <= {"0 samples, 0 go on"}
    assert len(rows) == (3 * PROMPTS if partial else PROMPTS) * SAMPLES


def test_prompts_that_do_not_come_fail_on_the_devices_that_do_not_wait_for_them_too(
    save_reference: SaveReference,
) -> None:
    bench = Bench(save_reference("qwen3")[1], {"pipeline": 2}, fed=PROMPTS - 1)

    ended, _ = bench.on_devices()

    assert ended[0].startswith("DockTimeout: state generate waited")
    assert ended[1] == "DockLost: 1 other ranks could not read or write their share"


@pytest.mark.parametrize(("family", "degrees"), LAYOUTS[1:])
@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_a_device_that_cannot_write_fails_all_once_they_have_generated(
    family: str, degrees: dict[str, int], partial: bool, save_reference: SaveReference
) -> None:
    bench = Bench(save_reference(family)[1], degrees, partial=partial)

    ended, _ = bench.on_devices(fails=0)

    assert ended == [
        "DockLost: the warehouse is gone",
        "DockLost: 1 other ranks could not read or write their share",
    ]
