"""The generate state of a partial rollout on a real dock: what a sample was made of goes with it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from forked_docks import ForkedDock
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_runtime.errors import DockLost
from rljob_runtime.prompts.pool_rows import (
    POOL_STATES,
    Lineage,
    PoolSample,
    group_columns,
    pool_rows,
)
from rljob_runtime.prompts.pools import Pools
from rljob_runtime.prompts.rounds import Round
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, Sampling
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import state_graph
from rljob_runtime.worker.partial_rollout import PartialRolloutState
from rljob_runtime.worker.rollout_replica import RolloutReplica

PROMPTS, SAMPLES, BUDGET, LONGEST = 4, 2, 3, 9
SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_response_length=LONGEST, eos_ids=(0,))


def make_spec() -> ResolvedSpec:
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"]["flow"] = {"partialRollout": {"budgetTokens": BUDGET}}
    job["spec"]["batch"] |= {
        "globalBatchSize": PROMPTS,
        "samplesPerPrompt": SAMPLES,
        "maxResponseLength": LONGEST,
    }
    job["spec"]["steps"] = 6
    return resolve(read_job(job)).spec


@dataclass
class CountingEngine:
    """Answers prompt [p, n] by n tokens: token t of a sample is 100·p + t, drawn with log-prob
    −(version + 1). calls: what it was asked for."""

    version: int = 0
    calls: list[PromptGroup] = field(default_factory=list)

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        for group in groups:
            self.calls.append(group)
            position, length = group.token_ids
            begun = len(group.begun)
            assert group.begun == [100 * position + t for t in range(begun)]
            made = range(begun, min(length, begun + group.limit(sampling)))
            finish = group.finish(made.stop == length < LONGEST, len(made), sampling)
            yield [
                Generated(
                    uid=uid,
                    token_ids=[100 * position + t for t in made],
                    logprobs=[-1.0 - self.version] * len(made),
                    finish=finish,
                    version=self.version,
                )
                for uid in group.uids
            ]


@dataclass
class Bench:
    """A dock with the rollout workers of a job. lengths: of the responses to each position."""

    dock: ForkedDock
    lengths: Sequence[int]
    spec: ResolvedSpec = field(default_factory=make_spec)

    def __post_init__(self) -> None:
        self.feeder = self.dock.client("feed", "feeder")
        self.reward = self.dock.client("reward", "reward-0")
        self.workers = [
            PartialRolloutState(
                replica=RolloutReplica(engine=CountingEngine()),  # type: ignore[arg-type]
                dock=self.dock.client("generate", f"device-{rank}"),
                spec=self.spec,
            )
            for rank in range(2)
        ]

    def feed(self, now: Round, version: int) -> None:
        """The feeder's part of a round."""
        rows = []
        for place, position in enumerate(now.fresh, now.groups - len(now.fresh)):
            columns = group_columns([position, self.lengths[position]], b"{}", position)
            samples = [PoolSample() for _ in range(SAMPLES)]
            rows += pool_rows(now.pool, place, columns, samples, version=version)
        self.feeder.put_rows(str(now.pool), rows, total=now.groups * SAMPLES, states=POOL_STATES)

    def step(
        self, pools: Pools, step: int, ranks: int = 2
    ) -> tuple[dict[str, list[list]], Lineage]:
        """One step; the batch's columns row by row, and where they came from."""
        batch, now = BatchName(kind="train", step=step), pools.make_round(step)
        self.feed(now, step - 1)
        for rank, worker in enumerate(self.workers[:ranks]):
            worker.replica.engine.version = step - 1  # type: ignore[misc]
            worker.run(batch, now, SAMPLING, (rank, ranks))
        claim = self.reward.claim(str(batch), share=(0, 1), timeout_seconds=10)
        names = ["prompt", "response", "rollout_logprobs", "versions"]
        found = self.reward.read(claim.rows, names)
        lineage = Lineage()
        lineage.add(self.reward, claim.rows, version=step - 1)
        assert [row.version for row in claim.rows] == [int(v[0]) for v in found["versions"].rows()]
        self.feeder.drop_batch(str(batch))
        pools.account.close(lineage.positions)
        return {name: [row.tolist() for row in found[name].rows()] for name in names}, lineage


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A dock of two warehouses; every third prompt has the longest response."""
    with ForkedDock(state_graph(make_spec()).states, warehouses=2) as dock:
        yield Bench(dock, lengths=[LONGEST if p % 3 == 0 else 2 for p in range(40)])


def test_a_long_sample_is_made_of_parts_with_the_version_and_log_prob_of_each(bench: Bench) -> None:
    pools = Pools(prompts=PROMPTS, extra=PROMPTS, steps=6)

    steps = [bench.step(pools, step, ranks=2 if step < 4 else 1) for step in range(1, 7)]

    rows = [row for columns, _ in steps for row in zip(*columns.values(), strict=True)]
    assert sorted({prompt[0] for prompt, *_ in rows}) == list(range(6 * PROMPTS))
    assert len(rows) == 6 * PROMPTS * SAMPLES
    for (position, length), response, logprobs, versions in rows:
        assert response == [100 * position + t for t in range(length)]
        assert logprobs == [-1.0 - version for version in versions]
        assert versions == sorted(versions)
        if position < 2 * PROMPTS and length == LONGEST:
            first = versions[0]
            assert versions == [first] * 3 + [first + 1] * 3 + [first + 2] * 3
    assert sum(lineage.mixed for _, lineage in steps) > SAMPLES
    bench.feeder.assert_empty()


def test_a_round_that_starts_over_repeats_the_seeds_of_its_prompts(bench: Bench) -> None:
    pools = Pools(prompts=PROMPTS, extra=PROMPTS, steps=6)
    engines: list[Any] = [worker.replica.engine for worker in bench.workers]

    def seeds() -> dict[int, list[int]]:
        asked = [call for engine in engines for call in engine.calls if not call.begun]
        for engine in engines:
            engine.calls.clear()
        return {call.token_ids[0]: call.seeds for call in asked}

    bench.step(pools, 1)
    before = seeds()
    lost = sorted(pools.account.open)
    pools.start_over()
    _, lineage = bench.step(pools, 2)
    after = seeds()

    assert len(lost) == PROMPTS and lineage.positions <= {*lost, *range(8, 12)}
    assert {position: after[position] for position in lost} == {p: before[p] for p in lost}
    assert len({seed for found in before.values() for seed in found}) == 2 * PROMPTS * SAMPLES


def test_a_batch_that_was_dropped_ends_the_round(bench: Bench) -> None:
    pools = Pools(prompts=PROMPTS, extra=PROMPTS, steps=6)
    batch, now = BatchName(kind="train", step=1), pools.make_round(1)
    bench.feed(now, 0)

    bench.feeder.drop_batch(str(batch))

    with pytest.raises(DockLost, match="train/1 was dropped"):
        bench.workers[0].run(batch, now, SAMPLING, (0, 1))


def test_columns_of_one_sample_have_the_types_that_the_states_compute_on() -> None:
    sample = PoolSample(end="stop")
    sample.add([7, 8], [-0.5, -0.25], versions=[3, 3])

    types = {name: column.dtype for name, column in sample.batch_columns().items()}

    assert types == {
        "response": np.int32,
        "rollout_logprobs": np.float32,
        "versions": np.int32,
    }
