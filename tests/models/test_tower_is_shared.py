"""A device's towers: a frozen one for all models of a type, which sees each picture of a step once, alone;
beside a trained one the reference's and the rollout's. They hold the bytes that `rljob plan` tells."""

import copy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from vision_models import VISION_FAMILIES, make_picture, make_vision_reference
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.model.architecture import find_shape, read_shape
from rljob_api.spec.engines import UpdateParallelism
from rljob_api.spec.rljob import RLJob
from rljob_api.spec.teacher import Teacher
from rljob_api.spec.workload import Model
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_plan.activations import PackedSizes, plan_activations
from rljob_plan.machines import MachineRates, rates_of
from rljob_plan.memory import plan_memory
from rljob_plan.performance import step_parts
from rljob_plan.pictures import (
    cached_tokens,
    generating_operations,
    prompt_operations,
    towers,
    training_operations,
)
from rljob_plan.plan import make_plan
from rljob_plan.plan_json import plan_json
from rljob_plan.plan_text import plan_text
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.models.config import read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.tower import VisionTower, VisionTowers
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.samples.pictures import Picture
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.weights.held_policy import load_local_policy

SIDE = 8
"""Patches of a picture's side: 16 tokens."""


@pytest.fixture(params=["qwen2.5-vl", "qwen3-vl"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    assert request.param in VISION_FAMILIES
    make_vision_reference(request.param).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def pictures(count: int) -> list[Picture]:
    random = torch.Generator().manual_seed(1)
    return [
        replace(make_picture(SIDE, SIDE, random), name=f"train/1/{number}/0")
        for number in range(count)
    ]


def job_of(path: Path, changes: Any = None, **update: str) -> RLJob:
    """Four prompts a step with one picture of 32 × 32 pixels each at most, on one device. changes: of the
    spec."""
    job = copy.deepcopy(SMALL_JOB)
    job["spec"] |= {
        "model": {"path": str(path), "vision": "frozen"},
        "data": {"jsonl": {"path": "x"}, "images": {"perPrompt": 1, "maxPixels": 32 * 32}},
        "rewards": [{"name": "right", "type": "exact"}],
        "update": update,
        "accelerator": {"type": "emulated", "devicesPerNode": 1},
    }
    job["spec"]["batch"] |= {"globalBatchSize": 4, "maxPromptLength": 64}
    job["spec"] |= changes or {}
    return read_job(job)


def spec_of(path: Path, changes: Any = None, **update: str) -> ResolvedSpec:
    return resolve(job_of(path, changes, **update)).spec


def test_each_picture_of_a_step_is_seen_once_and_as_if_alone(path: Path) -> None:
    tower, shown = VisionTowers(path=path, cache_tokens=4 * 16).of(torch.float32), pictures(4)
    places_P = torch.arange(4 * 16)

    together = tower.see(shown, places_P)
    again = tower.see(shown[::-1], places_P)
    one = VisionTowers(path=path).of(torch.float32).see(shown[1:2], places_P[:16])

    assert tower.pictures_seen == 4
    for ours, other, alone in zip(
        (together.features_PH, *together.added),
        (again.features_PH, *again.added),
        (one.features_PH, *one.added),
        strict=True,
    ):
        assert ours[16:32].equal(alone)
        assert other[32:48].equal(alone)


def test_pictures_without_a_name_and_those_that_have_no_room_are_seen_again(path: Path) -> None:
    tower, shown = VisionTowers(path=path, cache_tokens=2 * 16).of(torch.float32), pictures(3)
    places_P = torch.arange(3 * 16)

    tower.see(shown, places_P)
    tower.see(shown[2:], places_P[:16])
    assert tower.pictures_seen == 3
    tower.see(shown[:1], places_P[:16])
    assert tower.pictures_seen == 4
    unnamed = [replace(shown[0], name="")]
    tower.see(unnamed, places_P[:16])
    tower.see(unnamed, places_P[:16])
    assert tower.pictures_seen == 6


def test_a_device_holds_the_bytes_of_the_plan_and_one_tower_for_both_roles(path: Path) -> None:
    spec, ledger = spec_of(path), MemoryLedger(device="cpu:0")
    shape = read_shape(read_config(path), name=str(path))
    assert shape is not None
    made = VisionTowers(
        path=path,
        cache_tokens=cached_tokens(spec, shape),
        track=partial(ledger.track, MemoryKind.VISION_TOWER),
    )

    TorchRollout(
        path, dtype=torch.float32, max_sequences=1, max_length=64, pictures=True, towers=made
    )
    for first in range(0, 8, 2):  # two steps, in parts
        made.of(torch.float32).see(pictures(8)[first : first + 2], torch.arange(2 * 16))

    phases = plan_memory(spec, shape).phases
    for phase in phases:
        assert phase.parts["vision tower"] == ledger.kind_bytes(MemoryKind.VISION_TOWER)
        assert "rollout's tower" not in phase.parts


def test_the_plan_counts_the_operations_that_a_tower_makes(path: Path) -> None:
    spec, shape = spec_of(path), read_shape(read_config(path), name=str(path))
    assert shape is not None
    tower = VisionTowers(path=path).of(torch.float32)
    module: Any = tower.module
    module.config._attn_implementation = "eager"  # whose products torch counts

    with FlopCounterMode(display=False) as counted:
        tower.see(pictures(1), torch.arange(16))

    assert prompt_operations(spec, shape) == pytest.approx(counted.get_total_flops(), rel=0.1)


def test_a_picture_is_seen_in_generation_and_in_training_again_where_others_train_on_it(
    path: Path,
) -> None:
    spec, shape = spec_of(path), read_shape(read_config(path), name=str(path))
    assert shape is not None
    one = prompt_operations(spec, shape)
    training, generating = (
        side.model_copy(update={"parallelism": side.parallelism.model_copy(update={"data": 2})})
        for side in (spec.update, spec.rollout)
    )
    two = spec.model_copy(update={"update": training})
    both = two.model_copy(update={"rollout": generating})
    narrow = spec_of(path, dtype="bfloat16")

    assert (generating_operations(spec, shape), training_operations(spec, shape)) == (4 * one, 0)
    assert (generating_operations(two, shape), training_operations(two, shape)) == (
        4 * one,
        2 * one,
    )
    assert (generating_operations(both, shape), training_operations(both, shape)) == (2 * one, 0)
    assert training_operations(narrow, shape) == 4 * one

    rates = (
        MachineRates(**{**asdict(rates_of("emulated")[0]), "flops": 1e6}),
        rates_of("emulated")[1],
    )
    parts = step_parts(two, shape, *rates)
    without = step_parts(two.model_copy(update={"model": Model(path="x")}), shape, *rates)
    assert parts["pictures"] == pytest.approx(4 * one / (1e6 * rates[1].products))
    assert parts["pictures again"] == pytest.approx(parts["pictures"] / 2)
    assert without["pictures"] == without["pictures again"] == 0.0


def test_a_plan_tells_what_towers_and_pictures_take(path: Path) -> None:
    plan = make_plan(job_of(path), base_dir=path.parent)

    told = plan_text(plan)
    volume = plan_json(plan)["sampleVolume"]

    assert "16 tokens of pictures a prompt, seen once on each: " in told
    assert " s in generation and 0.000000 s in training" in told
    assert (
        f"GB each time that prompts go, once a group, at most {3 * 32 * 32 / 2**20:.3g} MB" in told
    )
    assert volume["picturesGB"] == 4 * 3 * 32 * 32 / 2**30
    flow = plan.samples.flow
    assert volume["updateGB"] == flow.stage_gb()
    assert flow.picture_bytes == 3 * 32 * 32


def test_a_critic_that_is_the_policys_model_has_its_tower(path: Path) -> None:
    shape = read_shape(read_config(path), name=str(path))
    assert shape is not None
    own = spec_of(path, {"algorithm": {"name": "ppo"}})
    other = spec_of(path, {"algorithm": {"name": "ppo"}, "critic": {"path": "other"}})

    assert towers(own, shape).keys() == {"update"}
    assert towers(other, shape).keys() == {"update", "critic"}
    assert training_operations(own, shape) == 0
    assert training_operations(other, shape) == 4 * prompt_operations(other, shape)


def test_a_teacher_has_a_tower_of_its_own(path: Path) -> None:
    spec, shape = spec_of(path), read_shape(read_config(path), name=str(path))
    assert shape is not None
    teacher = Teacher(path="x", dtype="bfloat16", parallelism=UpdateParallelism(data=2))
    taught = spec.model_copy(update={"teacher": teacher})
    wider = replace(shape, hidden=2 * shape.hidden, tower=2 * shape.tower)

    made = towers(taught, shape, {"teacher": wider})["teacher"]

    assert made.bytes == 2 * (2 * shape.tower + 2 * 16 * 2 * shape.hidden * shape.tower_outputs)
    parts = plan_memory(taught, shape, {"teacher": wider}).phases[0].parts
    assert parts["teacher's tower"] == made.bytes
    one = prompt_operations(taught, wider)
    assert training_operations(taught, shape, {"teacher": wider}) == 2 * one


def test_roles_that_compute_in_two_types_have_a_tower_each(path: Path) -> None:
    shape = read_shape(read_config(path), name=str(path))
    assert shape is not None

    phases = plan_memory(spec_of(path, dtype="bfloat16"), shape).phases

    (generating,) = [phase.parts for phase in phases if phase.name == "generate"]
    assert generating["rollout's tower"] == 2 * generating["vision tower"]


def test_where_a_tower_is_trained_the_plan_knows_those_of_update_reference_and_rollout(
    path: Path,
) -> None:
    trained = {
        "model": {"path": str(path), "vision": "trained"},
        "algorithm": {"name": "grpo", "params": {"klCoefficient": 0.1}},
    }
    spec, ledger = spec_of(path, trained), MemoryLedger(device="cpu:0")
    assert "reference" in spec.states
    shape = find_shape(spec.model, base_dir=path)
    assert shape is not None
    track = partial(ledger.track, MemoryKind.VISION_TOWER)
    frozen = VisionTowers(path=path, cache_tokens=cached_tokens(spec, shape), track=track)
    arriving = replace(frozen, arrives=True)
    policy = load_local_policy(path, UpdateRanks(), dtype=torch.float32)
    assert isinstance(policy.model, Decoder)
    policy.model.show(VisionTower.from_path(path, dtype=torch.float32, trained=True))
    rollout = TorchRollout(
        path,
        dtype=torch.float32,
        max_sequences=1,
        max_length=64,
        pictures=True,
        towers=arriving,
        ledger=ledger,
    )
    for held_here in (frozen, arriving):
        held_here.of(torch.float32).see(pictures(4), torch.arange(4 * 16))

    phases = {phase.name: phase.parts for phase in plan_memory(spec, shape).phases}
    generating = phases["generate"]
    held = generating["vision tower"] + generating["rollout's tower"]
    assert held == ledger.kind_bytes(MemoryKind.VISION_TOWER)
    assert generating["rollout weights"] == ledger.kind_bytes(MemoryKind.ROLLOUT_WEIGHTS)
    slices = policy.slices()
    assert phases["update"]["update weights"] == sum(own.nbytes for own in slices.values())
    assert {n: own.shape for n, own in slices.items()} == {
        n: own.shape for n, own in rollout.slices().items()
    }
    rollout.filled(1)
    assert ledger.kind_bytes(MemoryKind.VISION_TOWER) == generating["vision tower"]


def test_what_a_trained_tower_keeps_for_its_backward_pass_is_planned_for_the_policy_alone(
    path: Path,
) -> None:
    plans = {}
    for vision in ("frozen", "trained"):
        model = {"path": str(path), "vision": vision}
        spec = spec_of(path, {"model": model, "algorithm": {"name": "ppo"}})
        shape = find_shape(spec.model, base_dir=path)
        assert shape is not None
        plans[vision] = {phase.name: phase.parts for phase in plan_memory(spec, shape).phases}

    batch = spec.batch
    packed = replace(PackedSizes.longest(batch), prompts=1)
    kept, plain = (
        plan_activations(
            replace(shape, trains_tower=trains),
            UpdateDegrees.model_validate({"data": 1}),
            packed,
            item_bytes=4,
            recompute="none",
            passes=1,
            pictured=16,
        ).retained
        for trains in (True, False)
    )
    more = plans["trained"]["update"]["activations"] - plans["frozen"]["update"]["activations"]
    assert more == batch.micro_batch_size * (kept - plain) > 0
    for part in ("critic", "gradients", "activations"):
        assert plans["trained"]["critic"][part] == plans["frozen"]["critic"][part]
