"""The update of a partial rollout: samples whose tokens were drawn by several versions of the weights."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from forked_docks import ForkedDock
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import resolve
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.errors import DockStale
from rljob_runtime.prompts.pool_rows import OpenGroup, PoolSample, batch_rows, group_columns
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import state_graph
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.worker.update import UpdateState

GROUPS, SAMPLES = 4, 2
BATCH = BatchName(kind="train", step=4)
VERSIONS = [[3, 3], [2, 3, 3], [1, 1, 2, 3], [1, 2, 2]]
"""Of the tokens of both samples of each group."""


def make_spec(flow):
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"]["batch"] |= {"globalBatchSize": GROUPS, "samplesPerPrompt": SAMPLES}
    job["spec"]["flow"] = flow
    job["spec"]["accelerator"] = {"type": "emulated", "devicesPerNode": 2}
    job["spec"]["placement"] = {"mode": "separated", "updateDevices": 1}
    return resolve(read_job(job)).spec


def made_group(number):
    """A group whose samples were drawn by VERSIONS, with log-probs that are not the present ones."""
    random = np.random.default_rng(number)
    samples = []
    for _ in range(SAMPLES):
        sample = PoolSample(end="stop")
        for version in VERSIONS[number]:
            sample.add([int(random.integers(0, 48))], [float(random.normal(-3.5, 0.5))], [version])
        samples.append(sample)
    prompt = random.integers(0, 48, 5).tolist()
    columns = group_columns(prompt, b"{}", 100 + number)
    return OpenGroup(
        prompt=prompt, position=100 + number, columns=columns, rows=[], samples=samples
    )


def train(bench, flow):
    """Weights after the update, and its report."""
    spec = make_spec(flow)
    with ForkedDock(state_graph(spec).states) as dock:
        rows = [
            row
            for number in range(GROUPS)
            for row in batch_rows(BATCH, number, made_group(number), reserve_bytes=64)
        ]
        states = ("reward", "update")
        dock.client("feed", "f").put_rows(str(BATCH), rows, total=len(rows), states=states)
        scorer = dock.client("reward", "r")
        claimed = scorer.claim(str(BATCH), timeout_seconds=10).rows
        rewards = [np.full(1, float(row.sample), dtype=np.float32) for row in claimed]
        scorer.write(claimed, {"reward": Ragged.from_rows(rewards)})
        engine = bench.make_engine(bench.make_model(), None, learning_rate=1e-3)
        update = UpdateState(
            engine=engine,
            dock=dock.client("update", "u"),
            ranks=UpdateRanks(),
            spec=spec,
            control=KlControl.of(spec.algorithm.params),
        )
        report = update.run(BATCH)
    return {name: weight.clone() for name, weight in engine.weights()}, report


def test_the_loss_corrects_for_the_weights_that_drew_each_token_as_in_an_asynchronous_run(both):
    bench = both[0]

    weights, report = train(bench, {"partialRollout": {"budgetTokens": 3}})
    expected, told = train(bench, {"mode": "async", "maxStaleness": 2})

    start = dict(bench.make_model().named_hf_parameters())
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert any(not torch.equal(weights[name], start[name]) for name in start)
    assert report.metrics == told.metrics
    assert told.lineage is None


def test_the_report_tells_whose_tokens_it_trained_on(both):
    _, report = train(both[0], {"partialRollout": {"budgetTokens": 3}})

    assert report.lineage.positions == {100, 101, 102, 103}
    assert report.rows_by_age == Counter({0: 2, 1: 2, 2: 4})
    assert report.lineage.tokens_by_age == Counter({0: 10, 1: 8, 2: 6})
    assert report.lineage.mixed == 6


def test_no_sample_whose_first_token_is_beyond_the_bound_is_trained_on(both):
    with pytest.raises(DockStale, match="weights version 1; the oldest that may be used is 2"):
        train(both[0], {"maxStaleness": 1, "partialRollout": {"budgetTokens": 3}})
