"""Each algorithm takes a step through the update state in each mode of the flow."""

import math
import threading
from contextlib import ExitStack
from functools import cache
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from forked_docks import ForkedDock
from made_samples import GROUPS, SAMPLES, Samples, make_spec

from rljob_api.spec.algorithms import PARAMS
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import state_graph
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.worker.training_objective import critic_objective
from rljob_runtime.worker.update import UpdateState

UNWEIGHTED = {"rolloutCorrection": {"weight": "none"}}
OF_PAIRS = {"dpo"}
"""Those whose loss is not of the policy that drew the samples."""
ATTEMPTS = count()


@pytest.fixture(scope="module")
def docks():
    """docks(spec): one with the spec's states and a client of each, which all steps share."""
    with ExitStack() as stack:

        @cache
        def with_states(states):
            dock = stack.enter_context(ForkedDock(states))
            return SimpleNamespace(client=cache(dock.client))

        yield lambda spec: with_states(state_graph(spec).states)


def job(name, *, params=None, **flow):
    own = {"valueClip": None} if name == "ppo" else {}
    given = {**own, **(params or {})}
    return make_spec(algorithm=name, devices=1, params=given, microBatchSize=4, **flow)


def train(bench, dock, spec, *, ages=1, early=False):
    """Whether each model moved, all weights after the step, and its report. ages: of the samples, 0 to one
    less; early: the update begins before the first sample is there."""
    batch = BatchName(kind="train", step=ages, attempt=next(ATTEMPTS))
    samples = Samples(spec, batch, tuple(range(ages)))
    dock.client("feed", "feeder").put_rows(str(batch), samples.rows(), total=GROUPS * SAMPLES)
    pace = {"pause": 0.005 if early else 0, "elsewhere": {"critic"}}
    producer = threading.Thread(target=samples.write, args=(dock, range(GROUPS)), kwargs=pace)
    update = make_update(bench, dock, spec)
    engines = [one.engine for one in (update, update.critic) if one is not None]
    before = [flat(engine) for engine in engines]

    producer.start()
    if not early:
        producer.join()
    if update.critic is not None:
        update.critic.read(batch)
    report = update.run(batch)
    producer.join()

    after = [flat(engine) for engine in engines]
    moved = [not torch.equal(*both) for both in zip(before, after, strict=True)]
    return moved, torch.cat(after), report


def make_update(bench, dock, spec):
    """The policy's, with its critic's where there is one."""
    control, ranks = KlControl.of(spec.algorithm.params), UpdateRanks()
    critic = None
    if spec.has_critic:
        critic = UpdateState(
            engine=bench.make_engine(bench.make_model(seed=1)),
            dock=dock.client("critic", "critic-0"),
            ranks=ranks,
            spec=spec.of_critic(),
            control=control,
            teaches=critic_objective,
        )
    return UpdateState(
        engine=bench.make_engine(bench.make_model()),
        dock=dock.client("update", "update-0"),
        ranks=ranks,
        spec=spec,
        control=control,
        critic=critic,
    )


def flat(engine):
    return torch.cat([weight.detach().flatten() for _, weight in engine.weights()])


def assert_trained(moved, report):
    assert all(moved)
    assert report.metrics["skipped"] == 0
    for metrics in (report.metrics, report.critic_metrics or {}):
        assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", PARAMS)
def test_a_step_moves_the_weights_and_one_that_is_streamed_leaves_the_same_bits(both, docks, name):
    sync, streaming = job(name, mode="sync"), job(name, mode="streaming")

    moved, weights, report = train(both[0], docks(sync), sync)
    _, streamed, told = train(both[0], docks(streaming), streaming, early=True)

    assert_trained(moved, report)
    assert torch.equal(weights, streamed)
    assert told.metrics == report.metrics
    assert "correction/mean" not in report.metrics


@pytest.mark.parametrize("max_staleness", [1, 4])
@pytest.mark.parametrize("name", PARAMS)
def test_a_step_on_samples_of_several_versions_is_corrected_for_who_drew_them(
    both, docks, name, max_staleness
):
    spec, ages = job(name, max_staleness=max_staleness), max_staleness + 1

    moved, weights, report = train(both[0], docks(spec), spec, ages=ages)

    assert_trained(moved, report)
    assert set(report.rows_by_age) == set(range(ages))
    assert ("correction/mean" in report.metrics) == (name not in OF_PAIRS)
    if name not in OF_PAIRS:
        plain = job(name, max_staleness=max_staleness, params=UNWEIGHTED)
        _, unweighted, told = train(both[0], docks(plain), plain, ages=ages)
        assert report.metrics["correction/mean"] != 1
        assert not torch.equal(weights, unweighted)
        assert "correction/mean" not in told.metrics
