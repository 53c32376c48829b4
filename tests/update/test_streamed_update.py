"""An update that takes its share as it comes ends with the bits of one that had all of it at once."""

import random
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from whole_runs import SMALL_JOB

from rljob_api.load import read_job
from rljob_api.topology import resolve
from rljob_runtime.batches import BatchName
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.local import LocalDock
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.errors import DockError, DockStale
from rljob_runtime.flow import state_graph
from rljob_runtime.states.update import Update

GROUPS, SAMPLES, RANKS = 8, 4, 2


def make_spec(*, kl: float = 0.0, max_staleness=None, **batch):
    job = {**SMALL_JOB, "spec": {**SMALL_JOB["spec"]}}
    job["spec"]["algorithm"] = {"name": "grpo", "params": {"klCoefficient": kl}}
    job["spec"]["batch"] = {**SMALL_JOB["spec"]["batch"], "microBatchSize": 1, **batch}
    if max_staleness is not None:
        job["spec"]["accelerator"] = {"type": "emulated", "devicesPerNode": RANKS + 1}
        job["spec"]["placement"] = {"mode": "separated", "updateDevices": RANKS}
        job["spec"]["flow"] = {"mode": "async", "maxStaleness": max_staleness}
    return resolve(read_job(job)).spec


@dataclass
class Samples:
    """Made-up samples of a batch, which every run gets alike."""

    spec: object
    batch: BatchName

    def rows(self):
        prompts = np.random.default_rng(1).integers(0, 48, (GROUPS, 5), dtype=np.int32)
        task = np.zeros(1, dtype=np.uint8)
        return [
            NewRow(
                uid=self.batch.row(g, s),
                group=self.batch.group(g),
                group_index=g,
                group_columns={"prompt": prompts[g], "task": task},
            )
            for g in range(GROUPS)
            for s in range(SAMPLES)
        ]

    def columns(self, rows):
        def values(row, name, length):
            numbers = np.random.default_rng([row.group_index, row.sample])
            tokens = numbers.integers(0, 48, 2 + row.sample, dtype=np.int32)
            if name == "response":
                return tokens
            if name == "reward":  # a third of the groups teach nothing
                good = row.group_index % 3 and row.sample < 2
                return np.full(1, float(good), dtype=np.float32)
            return numbers.normal(-3.9, 0.3, len(tokens)).astype(np.float32)

        return lambda names: {
            name: Ragged.from_rows([values(row, name, 0) for row in rows]) for name in names
        }

    def write(self, dock, order, *, pause):
        """Answer the prompts group by group in this order, then do every other state's work."""
        states = {s.name: s for s in state_graph(self.spec).states if s.name != "update"}
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


def train(bench, spec, *, order, pause, early, drop=False, step=1):
    """Weights, report and failure of each rank; early: the update begins before the first sample is there."""
    samples = Samples(spec, BatchName(kind="train", step=step))
    with LocalDock(state_graph(spec).states) as dock:
        feeder = dock.client("feed", "feeder")
        feeder.put_rows(str(samples.batch), samples.rows(), total=GROUPS * SAMPLES)

        def produce():
            samples.write(dock, order, pause=pause)
            if drop:
                feeder.drop_batch(str(samples.batch))

        producer = threading.Thread(target=produce)
        producer.start()
        if not early:
            producer.join()
        clients = [dock.client("update", f"update-{rank}") for rank in range(RANKS)]

        def run(rank, group):
            engine = bench.make_engine(bench.make_model(), group, learning_rate=1e-3)
            update = Update(
                engine=engine, dock=clients[rank], share=(rank, RANKS), spec=spec, group=group
            )
            failure = report = None
            try:
                report = update.run(samples.batch)
            except DockError as error:
                failure = error
            return {name: w.clone() for name, w in engine.weights()}, report, failure

        results = bench.on_ranks(RANKS, run)
        producer.join()
    return results


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(),
        make_spec(microBatchSize=2),
        make_spec(kl=0.1),
        make_spec(miniBatchSize=4, epochs=2),
    ],
    ids=["one-step", "two-groups-a-pass", "reference", "two-mini-batches-twice"],
)
def test_samples_that_come_in_any_order_at_any_time_leave_the_same_bits(both, spec):
    bench = both[0]
    shuffled = random.Random(3).sample(range(GROUPS), GROUPS)

    whole = train(bench, spec, order=range(GROUPS), pause=0, early=False)
    streamed = train(bench, spec, order=shuffled, pause=0.02, early=True)

    start = dict(bench.make_model().named_hf_parameters())
    for (expected, told, _), (weights, report, failure) in zip(whole, streamed, strict=True):
        assert failure is None
        assert report.metrics == told.metrics
        assert report.rows_by_age == {0: GROUPS * SAMPLES // RANKS}
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
        assert any(not torch.equal(weights[name], start[name]) for name in start)


def test_a_batch_that_is_dropped_half_way_changes_no_weight_on_any_rank(both):
    bench = both[0]
    start = dict(bench.make_model().named_hf_parameters())

    results = train(bench, make_spec(), order=range(GROUPS - 1), pause=0.02, early=True, drop=True)

    for weights, _, failure in results:
        assert isinstance(failure, DockError)
        assert all(torch.equal(weights[name], start[name]) for name in start)


def test_samples_are_as_old_as_the_bound_allows_and_no_older(both):
    bench = both[0]
    start = dict(bench.make_model().named_hf_parameters())
    order = {"order": range(GROUPS), "pause": 0, "early": False}

    allowed = train(bench, make_spec(max_staleness=2), step=3, **order)
    refused = train(bench, make_spec(max_staleness=1), step=3, **order)

    for weights, report, _ in allowed:
        assert report.rows_by_age == {2: GROUPS * SAMPLES // RANKS}
        assert any(not torch.equal(weights[name], start[name]) for name in start)
    for weights, _, failure in refused:
        assert isinstance(failure, DockStale)
        assert "weights version 0; the oldest that may be used is 1" in str(failure)
        assert all(torch.equal(weights[name], start[name]) for name in start)
