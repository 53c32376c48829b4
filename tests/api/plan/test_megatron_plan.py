"""What is planned of the update engine `megatron` in place of `torch`, by hand, and its layouts."""

from dataclasses import replace
from typing import Any

import pytest
from small_shapes import DENSE, SPARSE

from rljob_api.check.megatron_rules import megatron_degrees
from rljob_api.check.run_rules import refusals
from rljob_api.model.architecture import BUILTINS, Shape
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import resolve
from rljob_plan.machines import rates_of
from rljob_plan.memory import least_to_train, plan_memory
from rljob_plan.performance import training_parts
from rljob_plan.search.estimates import Estimator
from rljob_plan.search.ranking import rank

TINY = BUILTINS["tiny"]
ENGINE, DEGREES = "spec.update.engine", "spec.update.parallelism"
TWO, FOUR = ({"spec.accelerator.devicesPerNode": number} for number in (2, 4))
FEW = {
    "spec.batch.globalBatchSize": 8,
    "spec.batch.samplesPerPrompt": 2,
    "spec.batch.maxPromptLength": 4,
    "spec.batch.maxResponseLength": 5,
}
TOKENS = 8 * (4 + 2 * 4)


def phases(job: Any, changes: dict[str, Any], shape: Shape) -> dict[str, dict[str, int]]:
    spec = resolve(job({ENGINE: "megatron", **changes})).spec
    return {phase.name: phase.parts for phase in plan_memory(spec, shape).phases}


def test_gradients_stay_while_a_device_generates(job):
    found = phases(job, {}, TINY)

    gradients = 4 * TINY.total().total
    assert {name: parts["gradients"] for name, parts in found.items()} == dict.fromkeys(
        ("generate", "update", "reshard"), gradients
    )
    assert found["update"]["update weights"] == gradients
    assert found["update"]["optimizer"] == 2 * gradients


def test_what_training_needs_at_least_has_its_gradients_once(job):
    spec = resolve(job({ENGINE: "megatron"})).spec

    parts = phases(job, {}, TINY)["update"]

    assert least_to_train(spec, TINY) == sum(parts.values())


@pytest.mark.parametrize(("zero", "shares"), [(0, 1), (1, 2)])
def test_in_bfloat16_ranks_share_main_weights_and_moments(job, zero, shares):
    changes = {**TWO, DEGREES: {"zero": zero}, "spec.update.dtype": "bfloat16"}

    found = phases(job, changes, TINY)["update"]

    weights = TINY.total().total
    assert found["update weights"] == 2 * weights
    assert found["gradients"] == 4 * weights
    assert found["optimizer"] == 3 * 4 * weights // shares


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_feed_forward_keeps_up_a_second_time(job, tensor):
    changes = {**FEW, "spec.accelerator.devicesPerNode": tensor, DEGREES: {"tensor": tensor}}
    torch, megatron = (
        phases(job, {**changes, ENGINE: engine}, DENSE)["update"]["activations"]
        for engine in ("torch", "megatron")
    )

    assert megatron - torch == 4 * TOKENS * 128 // tensor * 4  # layers, inner features, bytes


def test_a_router_keeps_seven_numbers_of_each_expert(job):
    torch, megatron = (
        phases(job, {**FEW, ENGINE: engine}, SPARSE)["update"]["activations"]
        for engine in ("torch", "megatron")
    )

    assert megatron - torch == 4 * 6 * TOKENS * 8 * 4


def test_gloo_copies_the_gradients_that_zero_sums(job):
    changes = {**TWO, **FEW, "spec.batch.globalBatchSize": 2}
    alone, shared = (
        phases(job, {**changes, DEGREES: {"zero": zero}}, DENSE)["update"] for zero in (0, 1)
    )

    assert alone["activations"] + alone["temporary"] < alone["gradients"]
    assert shared["activations"] + shared["temporary"] == shared["gradients"]


def test_passes_take_a_fifth_longer_than_those_of_torch(job):
    torch, megatron, mindspeed = (
        training_parts(resolve(job({**TWO, ENGINE: engine})).spec, TINY, *rates_of("emulated"))
        for engine in ("torch", "megatron", "mindspeed")
    )

    assert megatron == {**torch, "update": pytest.approx(1.2 * torch["update"])}
    assert mindspeed == torch


@pytest.mark.parametrize(
    ("shape", "degrees", "path", "told"),
    [
        (SPARSE, {"data": 4, "tensor": 2, "expert": 2}, "expert", "use 4 or 1"),
        (DENSE, {"tensor": 8}, "tensor", "num_key_value_heads=4"),
        (replace(DENSE, intermediate=126), {"tensor": 4}, "tensor", "intermediate_size=126"),
    ],
)
def test_degrees_that_its_layers_cannot_have_are_refused(shape, degrees, path, told):
    asked = UpdateDegrees(**{"data": 1, **degrees})

    (problem,) = megatron_degrees("megatron", asked, shape)

    assert problem.path == f"{DEGREES}.{path}"
    assert told in problem.message
    assert list(megatron_degrees("torch", asked, shape)) == []


def test_a_search_proposes_what_it_can_train_alone(job):
    torch, megatron = (
        rank(
            Estimator(job({**FOUR, **FEW, ENGINE: engine}), SPARSE, {}, rates_of("emulated")),
            top=60,
        ).proposals
        for engine in ("torch", "megatron")
    )

    assert not any(refusals(one.job, SPARSE) for one in megatron)
    assert {one.estimate.layout.update.zero for one in megatron} == {0, 1}
    assert 2 in {one.estimate.layout.update.zero for one in torch}
    assert any(one.estimate.layout.update.expert > 1 for one in megatron)
