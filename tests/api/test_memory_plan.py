"""Bytes a device in every phase, by hand, and what is refused because it does not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.architecture import BUILTINS, Experts, Shape
from rljob_api.memory import plan_memory, rollout_shard, stages, update_shard
from rljob_api.plan import make_plan, memory_problems, plan_resharding
from rljob_api.topology import resolve

TINY = BUILTINS["tiny"]
WEIGHTS = TINY.total().total * 4
DENSE = Shape(
    family="llama", vocab=1000, hidden=64, layers=4, intermediate=128, heads=8, kv_heads=4,
    head_dim=8,
)  # fmt: skip
SPARSE = Shape(
    family="qwen3_moe", vocab=1000, hidden=64, layers=4, intermediate=128, heads=8, kv_heads=4,
    head_dim=8, experts=Experts(count=8, intermediate=32),
)  # fmt: skip
LAYER = 64 * (64 + 64 + 32 + 32) + 3 * 64 * 128
EXPERTS = 8 * 3 * 64 * 32
EIGHT = {"spec.accelerator.devicesPerNode": 8}
UPDATE, ROLLOUT = "spec.update.parallelism", "spec.rollout.parallelism"


def phases(spec, shape):
    return {phase.name: phase for phase in plan_memory(spec, shape).phases}


def test_one_device_holds_weights_gradients_and_two_moments(job):
    spec = resolve(job()).spec

    update = phases(spec, TINY)["update"]

    prompts, tokens = 16, 128 + 8 * 64
    assert update.parts == {
        "update weights": WEIGHTS,
        "optimizer": 2 * WEIGHTS,
        "gradients": WEIGHTS,
        "activations": prompts * tokens * 128 * 4 * 4,
        "rollout weights": WEIGHTS,
    }
    assert update.host == 0


def test_rollout_matrices_of_8_bits_take_a_byte_and_a_scale_a_row(job):
    changes = {"spec.rollout": {"quantization": "int8", "dtype": "bfloat16"}}
    spec = resolve(job(changes)).spec

    found = plan_memory(spec, SPARSE).rollout_weights

    rows = 64 + 32 + 32 + 64 + 8 * (32 + 32 + 64)  # of q, k, v, o, and of the experts
    matrices = 64 * (64 + 32 + 32 + 64) + EXPERTS
    kept = 2 * 1000 * 64 + 64 + 4 * (2 * 64 + 8 * 64)  # vocabulary, norms, routers
    assert found == 4 * (matrices + 4 * rows) + 2 * kept


def test_the_kv_cache_is_that_of_all_samples_of_a_replica(job):
    spec = resolve(job({"spec.accelerator.devicesPerNode": 2})).spec

    cache = plan_memory(spec, TINY).kv_cache

    assert cache.sequence == (128 + 64) * 4 * 2 * 128 * 4
    assert (cache.wanted, cache.room) == (64, 64)


def test_a_reference_model_is_held_in_every_phase(job):
    spec = resolve(job({"spec.algorithm.params.klCoefficient": 0.01})).spec

    assert all(phase.parts["reference"] == WEIGHTS for phase in phases(spec, TINY).values())


def test_separated_devices_hold_one_role_each(job):
    changes = {
        "spec.accelerator.devicesPerNode": 2,
        "spec.placement": {"mode": "separated", "updateDevices": 1},
    }

    spec = resolve(job(changes)).spec

    parts = {name: set(phase.parts) for name, phase in phases(spec, TINY).items()}
    assert parts["generate"] == {"rollout weights", "KV cache"}
    assert "rollout weights" not in parts["update"]
    resharding = plan_resharding(spec, TINY)
    assert (resharding.redundant, resharding.released) == (0, 0)


def test_swapping_moves_the_update_weights_to_the_host(job):
    kept = phases(resolve(job()).spec, TINY)["generate"]
    spec = resolve(job({"spec.resharding.strategy": "allgather-swap"})).spec

    swapped = phases(spec, TINY)["generate"]

    assert kept.device - swapped.device == swapped.host == WEIGHTS
    assert plan_resharding(spec, TINY).released == WEIGHTS


def test_tensor_and_pipeline_cut_the_fullest_stage(job):
    changes = EIGHT | {UPDATE: {"tensor": 2, "pipeline": 4}, f"{ROLLOUT}.tensor": 4}
    spec = resolve(job(changes)).spec

    update, rollout = update_shard(spec, DENSE), rollout_shard(spec, DENSE)

    # the last stage: a layer and the head (vocabulary 1000), its norms whole
    assert update.tensor == (LAYER + 64_000) // 2
    assert update.whole == 3 * 64
    assert rollout.tensor == (4 * LAYER + 2 * 64_000) // 4


def test_experts_are_cut_by_their_own_degree_or_like_matrices(job):
    changes = EIGHT | {f"{UPDATE}.expert": 4, f"{ROLLOUT}.tensor": 2}
    spec = resolve(job(changes)).spec

    assert update_shard(spec, SPARSE).experts == 4 * EXPERTS // 4
    assert rollout_shard(spec, SPARSE).experts == 4 * EXPERTS // 2


@pytest.mark.parametrize(
    ("zero", "expert", "cut"), [(0, 4, ""), (1, 4, "o"), (2, 4, "og"), (3, 1, "ogw")]
)
def test_zero_shares_state_among_replicas(job, zero, expert, cut):
    spec = resolve(job(EIGHT | {UPDATE: {"zero": zero, "expert": expert}})).spec
    shape = SPARSE
    dense = shape.total().tensor + shape.total().whole
    experts = 4 * EXPERTS // expert
    whole, shared = dense + experts, -(-dense // 8) + -(-experts // (8 // expert))

    parts = phases(spec, shape)["update"].parts

    assert parts["optimizer"] == 8 * (shared if "o" in cut else whole)
    assert parts["gradients"] == 4 * (shared if "g" in cut else whole)
    assert parts["update weights"] == 4 * (shared if "w" in cut else whole)


def test_bfloat16_keeps_a_master_copy_and_float32_gradients(job):
    parts = phases(resolve(job({"spec.update.dtype": "bfloat16"})).spec, TINY)["update"].parts

    items = TINY.total().total
    assert parts["update weights"] == 2 * items
    assert parts["gradients"] == 4 * items
    assert parts["optimizer"] == 12 * items


@given(layers=st.integers(1, 100), pipeline=st.integers(1, 100))
def test_stages_cover_all_layers_as_evenly_as_possible(layers, pipeline):
    cut = stages(layers, pipeline)

    assert [layer for stage in cut for layer in stage] == list(range(layers))
    assert len(cut) == pipeline
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


def test_a_phase_that_does_not_fit_is_refused_with_its_parts(job, tmp_path):
    plan = make_plan(job({"spec.accelerator.memory": "12Mi"}), base_dir=tmp_path)

    update = {problem.message.split(",")[1].split()[1]: problem for problem in plan.problems}[
        "update"
    ]
    assert update.path == "spec.accelerator.memory"
    assert update.message.startswith("is 12Mi, but update needs at least 36.9 MB a device (up")
    assert "activations 20 MB" in update.message
    assert "raise spec.update.parallelism.tensor or pipeline, spec.update." in update.message


def test_a_kv_cache_takes_the_room_that_is_left(job):
    spec = resolve(job({"spec.accelerator.memory": "50Mi"})).spec

    memory = plan_memory(spec, TINY)

    room = 50 * 2**20 - 4 * WEIGHTS
    assert memory.kv_cache.room == room // memory.kv_cache.sequence < 128
    assert memory_problems(spec, memory) == []


def test_a_kv_cache_without_room_for_one_sequence_is_refused(job):
    changes = {
        "spec.accelerator.memory": "21Mi",
        "spec.batch": {
            "globalBatchSize": 1,
            "samplesPerPrompt": 2,
            "maxPromptLength": 2000,
            "maxResponseLength": 10,
        },
    }
    spec = resolve(job(changes)).spec

    (problem,) = memory_problems(spec, plan_memory(spec, TINY))

    assert "for the KV cache, but one sequence of the longest lengths takes 7.85 MB" in (
        problem.message
    )
