"""An update that takes its share as it comes ends with the bits of one that had all of it at once."""

import random
import threading
from typing import Any

import pytest
import torch
from forked_docks import ForkedDock
from made_samples import GROUPS, RANKS, SAMPLES, Samples, make_spec

from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.errors import DockError, DockStale
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import state_graph
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.worker.update import UpdateState


def train(bench, spec, *, order, pause, early, drop=False, step=1, more=(0,)):
    """Weights, report and failure of each rank; early: the update begins before the first sample is there.
    more: see Samples."""
    samples = Samples(spec, BatchName(kind="train", step=step), more=more)
    with ForkedDock(state_graph(spec).states) as dock:
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
            update = UpdateState(
                engine=engine,
                dock=clients[rank],
                ranks=UpdateRanks(everyone=group),
                spec=spec,
                control=KlControl.of(spec.algorithm.params),
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
        make_spec(miniBatchSize=4, epochs=2, microBatchTokens=40),
        make_spec(miniBatchSize=4, params={"batchReweighting": {"weights": "max-min"}}),
    ],
    ids=[
        "one-step",
        "two-groups-a-pass",
        "reference",
        "two-mini-batches-twice",
        "by-tokens",
        "reweighted",
    ],
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


def test_ranks_that_share_by_length_train_on_as_many_tokens_and_learn_the_same(both):
    bench = both[0]
    shuffled = random.Random(3).sample(range(GROUPS), GROUPS)
    uneven: dict[str, Any] = {"more": (0, 20), "order": range(GROUPS), "pause": 0, "early": False}
    sizes: dict[str, Any] = {"miniBatchSize": 4}
    by_length = make_spec(balance="length", **sizes)

    in_turn = train(bench, make_spec(**sizes), **uneven)
    shared = train(bench, by_length, **uneven)
    streamed = train(bench, by_length, **{**uneven, "order": shuffled, "early": True})

    def tokens(results):
        return [report.tokens for _, report, _ in results]

    assert tokens(in_turn)[1] - tokens(in_turn)[0] == 20 * GROUPS * SAMPLES // RANKS
    assert tokens(shared)[0] == tokens(shared)[1] == sum(tokens(in_turn)) // RANKS
    for (_, report, _), (weights, told, _), (again, _, _) in zip(
        in_turn, shared, streamed, strict=True
    ):
        assert told.rows_by_age == {0: GROUPS * SAMPLES // RANKS}
        assert told.metrics == pytest.approx(report.metrics, rel=1e-3, abs=1e-6)
        assert all(torch.equal(weights[name], again[name]) for name in weights)
