"""Bytes that update ranks send in a step, by hand; what real ranks send is in tests/parallel/decoder."""

from pathlib import Path

import pytest

from rljob_api.model.architecture import BUILTINS
from rljob_api.topology.resolved import resolve
from rljob_plan.plan import make_plan
from rljob_plan.plan_json import plan_json
from rljob_plan.plan_text import plan_text
from rljob_plan.traffic import UpdateTraffic
from rljob_plan.update_traffic import longest_work, plan_traffic

TINY = BUILTINS["tiny"]
HERE = Path(__file__).parent
TWO = {"spec.accelerator.devicesPerNode": 2}
UPDATE = "spec.update.parallelism"


def traffic(job, changes):
    return plan_traffic(resolve(job(changes)).spec, TINY)


def test_one_device_sends_nothing(job):
    assert traffic(job, {}) == UpdateTraffic()


def test_data_ranks_send_the_gradients_in_one_sum(job):
    found = traffic(job, TWO)

    assert found == UpdateTraffic(data=4 * TINY.total().total)


def test_tensor_ranks_send_their_tokens_ten_times_a_layer(job):
    changes = TWO | {f"{UPDATE}.tensor": 2, "spec.batch.microBatchSize": 4}

    found = traffic(job, changes)

    passes, tokens = 4, 4 * (128 + 8 * 63)
    half = tokens // 2 * 128 * 4
    positions, targets = 4 * (1 + 8 * 63), 4 * 8 * 64
    numbers = 4 * (3 * positions + targets)
    assert found.tensor == passes * ((10 * 4 + 2 + 2) * half + numbers)
    assert found.data == 4 * TINY.total().replicated


def test_pipeline_ranks_send_hidden_states_and_what_the_last_stage_says_of_each_token(job):
    changes = TWO | {f"{UPDATE}.pipeline": 2, "spec.batch.microBatchSize": 1}

    found = traffic(job, changes)

    told = 2 * 4 * 8 * 64 // 2  # a log-prob and an entropy
    assert found == UpdateTraffic(pipeline=16 * ((128 + 8 * 63) * 128 * 4 + told))


def test_layers_that_are_computed_again_gather_their_tokens_again(job):
    changes = TWO | {f"{UPDATE}.tensor": 2, "spec.batch.microBatchSize": 4}

    kept = traffic(job, changes)
    again = traffic(job, changes | {"spec.update.recompute": "full"})

    half = 4 * (128 + 8 * 63) // 2 * 128 * 4
    assert again.tensor - kept.tensor == 4 * 3 * 4 * half
    assert again.data == kept.data


def test_rows_of_weights_are_gathered_twice_a_pass_and_those_of_both_ends_once(job):
    changes = TWO | {f"{UPDATE}.zero": 3, "spec.batch.microBatchSize": 1}

    found = traffic(job, changes)

    ends = TINY.embedding().total + TINY.head().total
    assert found == UpdateTraffic(data=8 * 4 * (3 * TINY.total().total - ends) // 2)


@pytest.mark.parametrize(("zero", "times"), [(0, 2), (1, 2), (2, 9)])
def test_zero_sends_gradients_every_pass_and_then_weights_as_well(job, zero, times):
    changes = TWO | {f"{UPDATE}.zero": zero, "spec.batch.microBatchSize": 1}

    found = traffic(job, changes)

    assert longest_work(resolve(job(changes)).spec).passes == 8
    assert found == UpdateTraffic(data=times * 4 * TINY.total().total // 2)


def test_a_plan_shows_what_is_sent_and_nothing_where_nothing_is(job):
    alone, two = (make_plan(job(changes), base_dir=HERE) for changes in ({}, TWO))

    assert plan_json(two)["updateTraffic"]["dataGB"] == 4 * TINY.total().total / 2**30
    assert "what a rank sends" in plan_text(two)
    assert set(plan_json(alone)["updateTraffic"].values()) == {0}
    assert "what a rank sends" not in plan_text(alone)
