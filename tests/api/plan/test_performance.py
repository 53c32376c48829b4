"""Seconds of a step's parts, by hand."""

from dataclasses import replace

import pytest

from rljob_api.model.architecture import BUILTINS, ExpertSizes
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_api.topology.resolved import resolve
from rljob_plan.collectives import step_collectives, token_collectives
from rljob_plan.decoding import active_parameters, forward_flops
from rljob_plan.machines import MachineRates, RateShares, rates_of
from rljob_plan.performance import step_parts

TINY = BUILTINS["tiny"]
PLAIN = MachineRates(
    flops=1e9, memory_bytes=1e8, link_bytes=1e6, swap_bytes=1e7, dispatch_bytes=float(2**20)
)
ALL = RateShares(products=1.0, reads=1.0, links=1.0)
SAMPLES, LENGTH = 16 * 8, 128 + 64


def parts(job, changes=None, shares=ALL, machine=PLAIN, packed=False, **more):
    return step_parts(resolve(job(changes)).spec, TINY, machine, shares, packed=packed, **more)


NODES = {"spec.accelerator": {"nodes": 2, "devicesPerNode": 2}}


def test_ranks_of_several_nodes_meet_over_the_network(job):
    narrow = replace(PLAIN, network_bytes=PLAIN.link_bytes / 10)

    def sent(tensor, machine):
        degrees = {"spec.update.parallelism": {"tensor": tensor}}
        return parts(job, NODES | degrees, machine=machine, packed=True)["communication"]

    assert sent(4, narrow) == pytest.approx(10 * sent(4, PLAIN))
    assert sent(2, PLAIN) < sent(2, narrow) < 10 * sent(2, PLAIN)  # tensor ranks share a node


def test_a_reshard_over_nodes_is_as_slow_as_the_network(job):
    narrow = replace(PLAIN, network_bytes=PLAIN.link_bytes / 10)
    cut = {"spec.update.parallelism": {"tensor": 2}}

    slow, fast = (parts(job, NODES | cut, machine=one)["reshard"] for one in (narrow, PLAIN))
    alone = parts(job, cut | {"spec.accelerator": {"devicesPerNode": 4}}, machine=narrow)

    assert slow > 2 * fast
    assert alone["reshard"] == pytest.approx(fast)


def test_ascend_products_have_rates_of_their_own():
    of = {name: rates_of(name)[0] for name in ("ascend910b", "ascend910c", "ascend950")}

    assert of["ascend910b"].flops < of["ascend910c"].flops < of["ascend950"].flops
    assert of["ascend910b"].link(9, per_node=8) == 200e9 / 8  # bits of RoCE
    for name in ("ascend910c", "ascend950"):
        assert of[name].link(384, per_node=16) == of[name].link(2, per_node=16)


def test_a_token_costs_two_products_of_each_parameter_and_half_of_attentions_square():
    attention = 4 * 4 * (32 + 32) * LENGTH

    assert forward_flops(TINY, LENGTH) == 2 * TINY.total().total + attention


def test_experts_that_a_token_does_not_choose_cost_nothing():
    experts = ExpertSizes(count=8, intermediate=16, chosen=2)
    sparse, chosen = (
        replace(TINY, family="qwen3_moe", experts=replace(experts, count=count)) for count in (8, 2)
    )

    routers = 4 * 128 * (8 - 2)
    assert active_parameters(sparse) - routers == active_parameters(chosen) == chosen.total().total


def test_an_update_is_three_forward_passes_and_what_is_recomputed(job):
    forward = SAMPLES * LENGTH * forward_flops(TINY, LENGTH) / 1e9

    found = parts(job, {"spec.algorithm.params.klCoefficient": 0.1}, recompute=0.5)

    assert found["update"] == pytest.approx(3.5 * forward)
    assert found["inference"] == pytest.approx(forward)
    assert found["prompts"] == pytest.approx(forward * 128 / LENGTH)
    assert parts(job)["inference"] == 0


def test_a_packed_prompt_is_computed_once_for_its_samples(job):
    tokens = 16 * (128 + 8 * 63)
    seen = 16 * (128**2 / 2 + 8 * 63 * (128 + 63 / 2))
    flops = 2 * TINY.total().total * tokens + 2 * 4 * 4 * (32 + 32) * seen

    found = parts(job, packed=True)

    assert found["update"] == pytest.approx(3 * flops / 1e9)
    prompt = 128 * forward_flops(TINY, 128)
    assert found["prompts"] == pytest.approx(16 * prompt / 1e9)


def test_decoding_reads_weights_and_cache_every_step_and_begins_again_where_there_is_no_room(job):
    weights, cache = TINY.total().total * 4, (128 + 32) * 4 * 2 * 128 * 4
    shares, fast = replace(ALL, layer_seconds=0.25), replace(PLAIN, flops=1e15)

    at_once = parts(job, shares=shares, machine=fast)["decoding"]
    fewer = {"spec.rollout.maxSequences": 64}
    in_two = parts(job, fewer, shares=shares, machine=fast)["decoding"]

    assert at_once == pytest.approx(64 * ((weights + 128 * cache) / 1e8 + 0.25 * 4))
    assert in_two == pytest.approx(2 * 64 * ((weights + 64 * cache) / 1e8 + 0.25 * 4))
    assert parts(job, shares=shares, machine=fast, room=64)["decoding"] == in_two


def test_products_of_many_sequences_take_longer_than_reading_the_weights(job):
    cache, steps = 128 * (128 + 32) * 4 * 2 * 128 * 4 / 1e8, 64

    found = parts(job)["decoding"]

    assert found == pytest.approx(steps * (128 * 2 * TINY.total().total / 1e9 + cache))


def test_stages_of_a_rollout_take_turns_and_tensor_ranks_put_their_parts_together(job):
    machine = replace(PLAIN, flops=1e15, memory_bytes=1e15, latency_seconds=0.5)
    two = {"spec.accelerator.devicesPerNode": 2}

    stages = parts(job, two | {"spec.rollout.parallelism.pipeline": 2}, machine=machine)
    shared = parts(job, two | {"spec.rollout.parallelism.tensor": 2}, machine=machine)

    hidden = 128 * 128 * 4 / 1e6
    assert stages["decoding"] == pytest.approx(64 * (hidden + 2 * 0.5), rel=1e-3)
    met = 2 * 4 + 3
    assert shared["decoding"] == pytest.approx(64 * (2 * 4 * hidden + met * 0.5), rel=1e-3)


def test_ranks_meet_as_often_as_their_degrees_ask():
    def met(passes=1, recompute="none", **degrees):
        update = UpdateDegrees.model_validate({"data": 1, **degrees})
        return step_collectives(TINY, update, passes=passes, recompute=recompute)

    norm, layers, vocabulary = 1, 4, 5
    assert met() == 0
    assert met(data=2) == 1 + norm
    assert met(data=2, zero=1) == 2 + norm
    assert met(3, data=2, zero=2) == 3 + 1 + norm
    assert met(3, data=2, zero=3) == 3 * 3 * layers + norm
    assert met(3, tensor=2) == 3 * (10 * layers + vocabulary) + norm
    assert met(3, "full", tensor=2) == 3 * (13 * layers + vocabulary) + norm
    assert met(context=4) == 8 * layers + 1 + norm
    assert met(context=4, contextAlgorithm="ring") == (3 + 3 + 4) * layers + 1 + norm
    assert met(5, pipeline=2) == 5 * 2 + norm
    tokens = RolloutDegrees(data=1, tensor=2)
    assert token_collectives(TINY, tokens) == 2 * layers + 3


def test_the_optimizer_reads_its_state_once_and_an_offload_moves_it_in_and_out(job):
    items = TINY.total().total

    resting = parts(job, {"spec.update.offload": "optimizer"})["optimizer"]

    there = items * (2 * 8 + 4 + 2 * 4) / 1e8
    assert parts(job)["optimizer"] == pytest.approx(there)
    assert resting == pytest.approx(there + 2 * 8 * items / 1e7)


def test_second_copies_go_to_the_host_and_what_is_sent_counts_where_nothing_hides_it(job):
    copied = 3 * 4 * TINY.total().total
    tensor = {"spec.accelerator.devicesPerNode": 2, "spec.update.parallelism.tensor": 2}
    kept, slow = copied / 1e7, replace(PLAIN, dispatch_bytes=1.0)

    assert parts(job)["copies"] == 0
    assert parts(job, {"spec.update.redundancy": "host"})["copies"] == pytest.approx(kept)
    sent = parts(job, tensor | {"spec.update.redundancy": "peer"}, machine=slow)
    beside = sum(sent[name] for name in ("prompts", "decoding", "inference", "reshard", "dispatch"))
    half = parts(job, tensor | {"spec.update.redundancy": "host"})["copies"]
    assert sent["copies"] == pytest.approx(half + half * 1e7 - beside)
    fast = replace(PLAIN, dispatch_bytes=1e12)
    hidden = parts(job, tensor | {"spec.update.redundancy": "peer"}, machine=fast)
    assert hidden["copies"] == pytest.approx(half)


def test_separated_devices_work_at_the_same_time_where_the_flow_lets_them(job):
    apart = {
        "spec.accelerator.devicesPerNode": 2,
        "spec.placement": {"mode": "separated", "updateDevices": 1},
    }

    sync, streaming, ahead = (
        parts(job, apart | {"spec.flow.mode": mode, "spec.rollout.maxSequences": 32})
        for mode in ("sync", "streaming", "async")
    )

    generating = sync["prompts"] + sync["decoding"]
    training = sync["update"] + sync["optimizer"]
    assert sync["hidden"] == 0
    assert ahead["hidden"] == pytest.approx(-min(generating, training))
    assert streaming["hidden"] == pytest.approx(ahead["hidden"] * 3 / 4)  # four turns of 32


def test_ranks_share_the_products_and_wait_for_links_and_the_pipelines_ends(job):
    changes = {"spec.accelerator.devicesPerNode": 2, "spec.update.parallelism.pipeline": 2}

    alone, two = parts(job), parts(job, changes)

    assert two["update"] == pytest.approx(alone["update"] / 2)
    assert two["bubbles"] == pytest.approx(two["update"] / SAMPLES)
    assert two["communication"] == pytest.approx(SAMPLES * (LENGTH * 128 * 4 + 64 * 4) / 1e6)
    assert (alone["communication"], alone["bubbles"]) == (0, 0)


def test_half_of_a_rate_takes_twice_the_time(job):
    fast = replace(PLAIN, flops=1e12)
    whole = parts(job, machine=fast)

    half = parts(job, shares=replace(ALL, products=0.5, fixed_seconds=3.0), machine=fast)

    assert half["update"] == pytest.approx(2 * whole["update"])
    assert (half["fixed"], whole["fixed"]) == (3.0, 0.0)
    assert half["decoding"] == whole["decoding"]
