"""Seconds of a step's parts, by hand."""

from dataclasses import replace

import pytest

from rljob_api.architecture import BUILTINS, Experts
from rljob_api.performance import Machine, Shares, active_parameters, forward_flops, step_parts
from rljob_api.topology import resolve

TINY = BUILTINS["tiny"]
PLAIN = Machine(
    flops=1e9, memory_bytes=1e8, link_bytes=1e6, swap_bytes=1e7, dispatch_bytes=float(2**20)
)
ALL = Shares(products=1.0, reads=1.0, links=1.0)
SAMPLES, LENGTH = 16 * 8, 128 + 64


def parts(job, changes=None, shares=ALL, **more):
    return step_parts(resolve(job(changes)).spec, TINY, PLAIN, shares, **more)


def test_a_token_costs_two_products_of_each_parameter_and_half_of_attentions_square():
    attention = 4 * 4 * (32 + 32) * LENGTH

    assert forward_flops(TINY, LENGTH) == 2 * TINY.total().total + attention


def test_experts_that_a_token_does_not_choose_cost_nothing():
    experts = Experts(count=8, intermediate=16, chosen=2)
    sparse, chosen = (
        replace(TINY, family="qwen3_moe", experts=replace(experts, count=count)) for count in (8, 2)
    )

    routers = 4 * 128 * (8 - 2)
    assert active_parameters(sparse) - routers == active_parameters(chosen) == chosen.total().total


def test_an_update_is_three_forward_passes_and_what_is_recomputed(job):
    forward = SAMPLES * LENGTH * forward_flops(TINY, LENGTH) / 1e9

    found = parts(job, {"spec.algorithm.params.klCoefficient": 0.1}, recompute=0.5)

    assert found["update"] == pytest.approx(3.5 * forward)
    assert found["reference"] == pytest.approx(forward)
    assert found["prompts"] == pytest.approx(forward * 128 / LENGTH)
    assert parts(job)["reference"] == 0


def test_decoding_reads_weights_and_cache_every_step_and_begins_again_where_there_is_no_room(job):
    weights, cache = TINY.total().total * 4, (128 + 32) * 4 * 2 * 128 * 4
    shares = replace(ALL, layer_seconds=0.25)

    at_once = parts(job, shares=shares)["decoding"]
    in_two = parts(job, {"spec.rollout.maxSequences": 64}, shares=shares)["decoding"]

    assert at_once == pytest.approx(64 * ((weights + 128 * cache) / 1e8 + 0.25 * 4))
    assert in_two == pytest.approx(2 * 64 * ((weights + 64 * cache) / 1e8 + 0.25 * 4))


def test_ranks_share_the_products_and_wait_for_links_and_the_pipelines_ends(job):
    changes = {"spec.accelerator.devicesPerNode": 2, "spec.update.parallelism.pipeline": 2}

    alone, two = parts(job), parts(job, changes)

    assert two["update"] == pytest.approx(alone["update"] / 2)
    assert two["bubbles"] == pytest.approx(two["update"] / SAMPLES)
    assert two["communication"] == pytest.approx(SAMPLES * (LENGTH * 128 * 4 + 64 * 4) / 1e6)
    assert (alone["communication"], alone["bubbles"]) == (0, 0)


def test_half_of_a_rate_takes_twice_the_time(job):
    whole = parts(job)

    half = parts(job, shares=replace(ALL, products=0.5, fixed_seconds=3.0))

    assert half["update"] == pytest.approx(2 * whole["update"])
    assert (half["fixed"], whole["fixed"]) == (3.0, 0.0)
    assert half["decoding"] == whole["decoding"]
