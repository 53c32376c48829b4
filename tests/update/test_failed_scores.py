"""Samples whose score failed, and what a failure leaves of a group, are no part of a step."""

import math

import pytest
import torch
from made_samples import SAMPLES, make_spec

from rljob_api.spec.algorithms import PARAMS
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.worker.training import BatchTraining

GROUPS = 8
FAILED = [1, 9, 20, 21, 22, 23]
"""A sample each of groups 0 and 2, and all of group 5."""
OF_REWARDS = [name for name in PARAMS if name not in ("dpo", "distillation", "ppo")]
SETTINGS = {
    "plain": {},
    "a micro-batch a group": {"microBatchSize": 1},
    "several optimizer steps": {"miniBatchSize": 4, "epochs": 2},
    "packed by tokens": {"microBatchTokens": 30},
}
RESAMPLED = {
    "filter": {"sampleFilter": {"strategy": "best-worst", "keep": 2}},
    "reweighting": {"batchReweighting": {"weights": "power", "power": 2.0}},
}


def made(bench) -> SampleBatch:
    samples = bench.make_batch(GROUPS, SAMPLES)
    random = torch.Generator().manual_seed(4)
    rewards_B = torch.rand(GROUPS * SAMPLES, generator=random).round(decimals=1)
    samples.scalars.update(reward=rewards_B)
    return samples


def trained(bench, samples, groups=GROUPS, **settings):
    """All weights and the metrics after a step on these samples."""
    spec = make_spec(devices=1, globalBatchSize=groups, **settings)
    engine = bench.make_engine(bench.make_model())
    training = BatchTraining(engine, spec, UpdateRanks())
    training.add(samples)
    metrics = training.finish()
    return torch.cat([weight.detach().flatten() for _, weight in engine.weights()]), metrics


def on_two_ranks(bench, samples):
    """All weights after a step on which two ranks work, each on every other group."""
    spec = make_spec(devices=2, globalBatchSize=GROUPS)

    def rank(number, group):
        engine = bench.make_engine(bench.make_model(), group)
        training = BatchTraining(engine, spec, UpdateRanks(everyone=group))
        training.add(
            samples.select([i for i in range(GROUPS * SAMPLES) if i // SAMPLES % 2 == number])
        )
        training.finish()
        return torch.cat([weight.detach().flatten() for _, weight in engine.weights()])

    return bench.on_ranks(2, rank)


def without(samples: SampleBatch, failed: list[int]) -> SampleBatch:
    return samples.select([i for i in range(samples.num_samples) if i not in failed])


def with_failed(samples: SampleBatch, failed: list[int]) -> SampleBatch:
    samples.scalars["reward"][failed] = math.nan
    return samples


@pytest.mark.parametrize("name", OF_REWARDS)
def test_a_step_is_that_of_the_samples_that_were_scored(both, name):
    found = trained(both[0], with_failed(made(both[0]), FAILED), algorithm=name)
    alone = trained(both[0], without(made(both[0]), FAILED), algorithm=name, groups=GROUPS - 1)
    all_of_them = trained(both[0], made(both[0]), algorithm=name)

    assert torch.equal(found[0], alone[0])
    assert found[1] == alone[1]
    assert not torch.equal(found[0], all_of_them[0])


@pytest.mark.parametrize("settings", [*RESAMPLED])
def test_samples_are_drawn_from_those_that_were_scored(both, settings):
    params = RESAMPLED[settings]

    found = trained(both[0], with_failed(made(both[0]), FAILED), params=params)
    alone = trained(both[0], without(made(both[0]), FAILED), params=params, groups=GROUPS - 1)

    assert torch.equal(found[0], alone[0])


@pytest.mark.parametrize("settings", [*SETTINGS])
def test_a_mini_batch_keeps_its_place_whatever_becomes_of_its_groups(both, settings):
    place, others = SETTINGS[settings], made(both[0])
    for i in FAILED:
        others.responses[i] = others.responses[i].flip(0)

    found = trained(both[0], with_failed(made(both[0]), FAILED), **place)
    again = trained(both[0], with_failed(others, FAILED), **place)

    assert torch.equal(found[0], again[0])
    assert all(math.isfinite(value) for value in found[1].values())


@pytest.mark.parametrize("name", ["grpo", "reinforce-plus-plus"])
def test_a_step_without_any_score_moves_no_weight_by_what_was_drawn(both, name):
    nothing = [*range(GROUPS * SAMPLES)]

    weights, metrics = trained(both[0], with_failed(made(both[0]), nothing), algorithm=name)

    before = both[0].make_engine(both[0].make_model())
    assert torch.equal(weights, torch.cat([w.detach().flatten() for _, w in before.weights()]))
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_rank_without_any_score_takes_the_step_of_the_others(both):
    of_rank_1 = [i for i in range(GROUPS * SAMPLES) if i // SAMPLES % 2]

    found = on_two_ranks(both[0], with_failed(made(both[0]), of_rank_1))
    alone, _ = trained(both[0], without(made(both[0]), of_rank_1), groups=GROUPS // 2)

    assert torch.equal(*found)
    torch.testing.assert_close(found[0], alone, rtol=1e-4, atol=1e-6)
