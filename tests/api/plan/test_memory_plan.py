"""Bytes a device in every phase, by hand, and what is refused because it does not fit."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_shapes import DENSE, SPARSE

from rljob_api.model.architecture import BUILTINS
from rljob_api.model.layout import stages
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import resolve
from rljob_plan.activations import PackedSizes, plan_activations
from rljob_plan.memory import plan_memory
from rljob_plan.memory_rules import memory_problems
from rljob_plan.plan import make_plan, plan_resharding
from rljob_plan.shards import rollout_shard, update_shard

TINY = BUILTINS["tiny"]
WEIGHTS = TINY.total().total * 4
LAYER = 64 * (64 + 64 + 32 + 32) + 3 * 64 * 128
EXPERTS = 8 * 3 * 64 * 32
EIGHT = {"spec.accelerator.devicesPerNode": 8}
GRPO_WITH_KL = {"name": "grpo", "params": {"klCoefficient": 0.1}}
PASSING = ("activations", "temporary")
CACHE = 128 * 192 * 4096
"""Of all samples of a step at the longest lengths."""
UPDATE, ROLLOUT = "spec.update.parallelism", "spec.rollout.parallelism"


@pytest.fixture
def job(job):
    """Jobs that keep both layouts, unless they say otherwise."""
    return lambda changes=None: job({"spec.resharding.strategy": "allgather", **(changes or {})})


def phases(spec, shape):
    return {phase.name: phase for phase in plan_memory(spec, shape).phases}


def test_one_device_holds_weights_gradients_and_two_moments(job):
    spec = resolve(job()).spec

    update = phases(spec, TINY)["update"]

    assert {name: size for name, size in update.parts.items() if name not in PASSING} == {
        "update weights": WEIGHTS,
        "optimizer": 2 * WEIGHTS,
        "gradients": WEIGHTS,
        "rollout weights": WEIGHTS,
        "KV cache": CACHE,
    }
    assert update.host == 0


def test_activations_are_what_each_layer_keeps_and_the_head(job):
    passing = {
        recompute: phases(resolve(job({"spec.update.recompute": recompute})).spec, TINY)["update"]
        for recompute in ("none", "full")
    }

    tokens, keys = 16 * (128 + 8 * 63), 16 * (128 + 8 * (128 + 63))
    hidden = 4 * 128  # bytes of a token; as many in its query, its key and its value
    norms = 2 * 2 * tokens * hidden + 2 * tokens * hidden
    attention = tokens * 3 * hidden + keys * 2 * hidden + tokens * 4 * 4
    layer = norms + attention + 4 * tokens * 3 * hidden
    masks = 16 * 8 * 63 * (128 + 63) * 4
    positions = 16 * (1 + 8 * 63)
    head = tokens * hidden + positions * hidden + positions * 259 * 4
    assert passing["none"].parts["activations"] == 4 * layer + masks + head
    assert passing["full"].parts["activations"] == 4 * tokens * hidden + masks + head
    in_layer = 2 * tokens * 3 * hidden + tokens * hidden - head
    assert passing["none"].parts["temporary"] == max(
        in_layer, positions * 259 * 4 + tokens * hidden
    )
    assert passing["full"].parts["temporary"] == layer + in_layer


def test_attention_on_npus_takes_no_masks(job):
    changes = {"spec.accelerator": {"type": "ascend910b"}, "spec.update.engine": "mindspeed"}
    emulated, npu = (
        phases(resolve(job(c)).spec, TINY)["update"].parts
        for c in ({"spec.update.engine": "megatron"}, changes)
    )

    masks = 16 * 8 * 63 * (128 + 63) * 4
    assert emulated["activations"] - npu["activations"] == masks


@pytest.mark.parametrize(
    ("virtual", "passes", "micro_batches"), [(1, 8, 4), (1, 2, 2), (2, 8, 5.5), (2, 1, 1)]
)
def test_the_first_stage_keeps_as_many_micro_batches_as_its_schedule_runs_ahead(
    virtual, passes, micro_batches
):
    def kept(**changes):
        degrees = UpdateDegrees(data=1, **changes)
        return plan_activations(
            replace(TINY, layers=8, vocab=1), degrees, PackedSizes.of(1, 2, 8, 9),
            item_bytes=4, recompute="full", passes=passes, portable=False,
        ).retained  # fmt: skip

    tokens = (8 + 2 * 8) * 128 * 4
    found = kept(pipeline=4, virtual_pipeline=virtual)

    given = 2 * virtual  # a chunk's input, and its output
    assert found == tokens * ((2 + given) * micro_batches + given)


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
    assert (cache.requested, cache.room) == (64, 64)


def test_a_cache_of_a_stated_size_holds_whole_tokens_of_it(job):
    spec = resolve(job({"spec.rollout.kvCacheMemory": "1Mi"})).spec

    memory = plan_memory(spec, TINY)

    token = 4 * 2 * 128 * 4
    assert memory.kv_cache.tokens == 2**20 // token == 256
    assert (memory.kv_cache.room, memory.kv_cache.requested) == (1, 128)
    assert memory.phases[0].parts["KV cache"] == 256 * token
    assert memory_problems(spec, memory) == []


def test_a_cache_takes_no_more_than_the_job_wants(job):
    plain, large = (
        resolve(job(changes)).spec for changes in ({}, {"spec.rollout.kvCacheMemory": "100Gi"})
    )

    assert plan_memory(large, TINY) == plan_memory(plain, TINY)


def test_a_cache_without_room_for_one_sequence_is_refused(job):
    spec = resolve(job({"spec.rollout.kvCacheMemory": "767Ki"})).spec

    (problem,) = memory_problems(spec, plan_memory(spec, TINY))

    assert problem.path == "spec.rollout.kvCacheMemory"
    assert problem.message.startswith(
        "is 767Ki, but one sequence of the longest lengths, 192 tokens"
    )
    assert "takes 0.75Mi on a device; use at least 1Mi, raise" in problem.message
    enough = resolve(job({"spec.rollout.kvCacheMemory": "768Ki"})).spec
    assert memory_problems(enough, plan_memory(enough, TINY)) == []


def test_a_cache_that_does_not_fit_beside_the_weights_is_refused(job):
    changes: dict[str, Any] = {
        "spec.accelerator.memory": "90Mi",
        "spec.rollout.kvCacheMemory": "85Mi",
    }
    changes |= {"spec.update.recompute": "full", "spec.batch.microBatchSize": 1}

    spec = resolve(job(changes)).spec

    problems = memory_problems(spec, plan_memory(spec, TINY))
    for phase, problem in zip(("generate", "update", "reshard"), problems, strict=True):
        assert problem.path == "spec.accelerator.memory"
        assert f"{phase} needs" in problem.message
        assert "lower spec.rollout.kvCacheMemory" in problem.message


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
    assert "rollout weights" not in phases(spec, TINY)["update"].parts
    assert plan_resharding(spec, TINY).released == WEIGHTS


HALVES = {"spec.accelerator.devicesPerNode": 2, f"{UPDATE}.tensor": 2, f"{UPDATE}.data": 1}
APART = {
    "spec.accelerator.devicesPerNode": 2,
    "spec.placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
}


def test_deltas_keep_what_was_sent_last_on_both_ends_in_every_phase(job):
    given = {"spec.resharding.deltas": True, "spec.rollout.dtype": "bfloat16"}

    found = phases(resolve(job(APART | given)).spec, TINY)
    without = phases(resolve(job(APART | {"spec.rollout.dtype": "bfloat16"})).spec, TINY)

    sent = found["generate"].parts["rollout weights"]
    for name in ("generate", "update", "reshard", "arrival"):
        assert found[name].parts == without[name].parts | {"weights sent last": sent}


@pytest.mark.parametrize(
    ("changes", "on_its_way"),
    [
        ({}, 0),
        (HALVES, 4),
        (HALVES | {"spec.rollout.dtype": "bfloat16"}, 4),
        (APART, 0),
        (APART | {"spec.rollout.dtype": "bfloat16"}, 2),
    ],
    ids=["whole", "joined", "joined in the update's type", "apart", "a copy in a narrower type"],
)
def test_a_stream_holds_both_layouts_where_a_device_has_both_and_the_largest_tensor(
    job, changes, on_its_way
):
    spec = resolve(job({"spec.resharding.strategy": "stream"} | changes)).spec

    found = phases(spec, DENSE)["reshard"].parts

    embedding = DENSE.vocab * DENSE.hidden  # more than any matrix of a layer
    item = 2 if spec.rollout.dtype == "bfloat16" else 4
    trains = update_shard(spec, DENSE).total * 4
    generates = rollout_shard(spec, DENSE).total * item
    assert found["update weights"] == trains
    assert found["rollout weights"] == (0 if changes.get("spec.placement") else generates)
    assert found["buffers"] == embedding * on_its_way


@pytest.mark.parametrize(("accelerator", "stays"), [("emulated", True), ("ascend910b", False)])
def test_vllm_takes_room_for_all_of_its_weights_at_once_and_on_cpu_keeps_it(
    job, accelerator, stays
):
    changes = {"spec.resharding.strategy": "allgather-swap", "spec.rollout.engine": "vllm"}
    changes["spec.accelerator.type"] = accelerator
    generates = rollout_shard(resolve(job(changes)).spec, DENSE).total * 4

    found = phases(resolve(job(changes)).spec, DENSE)

    trains = update_shard(resolve(job(changes)).spec, DENSE).total * 4
    assert found["reshard"].parts["update weights"] == trains
    assert found["reshard"].parts["rollout weights"] == generates
    assert "update weights" not in found["generate"].parts
    assert found["update"].parts.get("rollout weights", 0) == (generates if stays else 0)


def test_a_swapped_reference_is_on_the_device_while_it_scores_alone(job):
    changes = {"spec.resharding.strategy": "allgather-swap", "spec.algorithm": GRPO_WITH_KL}

    found = phases(resolve(job(changes)).spec, TINY)

    assert {name for name, phase in found.items() if "reference" in phase.parts} == {"reference"}
    assert found["generate"].host == 2 * WEIGHTS


def test_an_optimizer_on_the_host_is_on_the_device_for_its_step_alone(job):
    kept = phases(resolve(job()).spec, TINY)
    found = phases(resolve(job({"spec.update.offload": "optimizer"})).spec, TINY)

    for name in ("generate", "update", "reshard"):
        assert kept[name].device - found[name].device == found[name].host == 2 * WEIGHTS
    assert found["step"].parts == {
        "update weights": WEIGHTS,
        "optimizer": 2 * WEIGHTS,
        "gradients": WEIGHTS,
        "rollout weights": WEIGHTS,
        "KV cache": CACHE,
    }
    assert "step" not in kept


def test_tensor_and_pipeline_cut_the_fullest_stage(job):
    changes = EIGHT | {UPDATE: {"tensor": 2, "pipeline": 4}, f"{ROLLOUT}.tensor": 4}
    spec = resolve(job(changes)).spec

    update, rollout = update_shard(spec, DENSE), rollout_shard(spec, DENSE)

    # the last stage: a layer and the head (vocabulary 1000), its norms whole
    assert update.tensor == (LAYER + 64_000) // 2
    assert update.replicated == 3 * 64
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
    dense = shape.total().tensor + shape.total().replicated
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


@pytest.mark.parametrize(("dtype", "main"), [("float32", 0), ("bfloat16", 4)])
def test_moments_in_8_bits_take_two_bytes_and_two_scales_a_block(job, dtype, main):
    changes = {"spec.update": {"dtype": dtype, "optimizer": {"momentsDtype": "float8"}}}

    parts = phases(resolve(job(changes)).spec, TINY)["update"].parts

    items = TINY.total().total
    assert parts["optimizer"] == (2 + main) * items + 8 * -(-items // 256)


def test_rows_of_weights_are_main_weights(job):
    spec = resolve(job(EIGHT | {"spec.update.dtype": "bfloat16", f"{UPDATE}.zero": 3})).spec

    parts = phases(spec, DENSE)["update"].parts

    rows = -(-DENSE.total().total // 8)
    assert [parts[name] for name in ("update weights", "gradients", "optimizer")] == [
        4 * rows, 4 * rows, 8 * rows,
    ]  # fmt: skip


@given(layers=st.integers(1, 100), pipeline=st.integers(1, 100))
def test_stages_cover_all_layers_as_evenly_as_possible(layers, pipeline):
    cut = stages(layers, pipeline)

    assert [layer for stage in cut for layer in stage] == list(range(layers))
    assert len(cut) == pipeline
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


def test_a_phase_that_does_not_fit_is_refused_with_its_parts(job, tmp_path):
    plan = make_plan(job({"spec.accelerator.memory": "12Mi"}), base_dir=tmp_path)

    (update,) = [problem for problem in plan.problems if "update needs" in problem.message]
    assert update.path == "spec.accelerator.memory"
    needs = "is 12Mi, but at the longest lengths update needs 0.563Gi a device (update w"
    assert update.message.startswith(needs)
    assert "activations 0.529Gi" in update.message
    assert "raise spec.update.parallelism.tensor or pipeline, spec.update." in update.message
    assert "lower spec.batch.microBatchSize, set spec.update.recompute: full" in update.message
    assert update.message.endswith(", or raise spec.accelerator.memory")


def test_a_kv_cache_takes_the_room_that_is_left(job):
    changes: dict[str, Any] = {"spec.accelerator.memory": "90Mi", "spec.update.recompute": "full"}
    spec = resolve(job(changes | {"spec.batch.microBatchSize": 1})).spec

    memory = plan_memory(spec, TINY)

    passing = sum(phases(spec, TINY)["update"].parts[name] for name in PASSING)
    room = 90 * 2**20 - 5 * WEIGHTS - passing
    assert memory.kv_cache.room == room // memory.kv_cache.sequence < 128
    assert memory_problems(spec, memory) == []


def test_a_swapped_job_has_room_for_a_cache_that_leaves_before_the_update(job):
    changes: dict[str, Any] = {"spec.accelerator.memory": "90Mi", "spec.update.recompute": "full"}
    changes |= {"spec.batch.microBatchSize": 1, "spec.resharding.strategy": "allgather-swap"}
    spec = resolve(job(changes)).spec

    memory = plan_memory(spec, TINY)

    room = 90 * 2**20 - 3 * WEIGHTS
    assert memory.kv_cache.room == room // memory.kv_cache.sequence < 128
    assert [p.name for p in memory.phases if "KV cache" in p.parts] == ["generate"]


def test_a_kv_cache_without_room_for_one_sequence_is_refused(job):
    sizes = {
        "globalBatchSize": 1,
        "samplesPerPrompt": 2,
        "maxPromptLength": 2000,
        "maxResponseLength": 10,
    }
    spec = resolve(job({"spec.accelerator.memory": "1Gi", "spec.batch": sizes})).spec
    memory = plan_memory(spec, TINY)
    assert memory_problems(spec, memory) == []

    full = replace(memory, kv_cache=replace(memory.kv_cache, tokens=0))
    (problem,) = memory_problems(spec, full)

    assert "for the KV cache, but one sequence of the longest lengths takes 7.85Mi" in (
        problem.message
    )


def test_a_pass_bounded_by_tokens_is_counted_as_one_of_as_many_prompts(job):
    batch = resolve(job({"spec.batch.microBatchSize": 2})).spec.batch
    group = batch.max_prompt_length + batch.samples_per_prompt * batch.max_response_length

    by_tokens = resolve(job({"spec.batch.microBatchTokens": 2 * group})).spec.batch

    assert PackedSizes.longest(by_tokens) == PackedSizes.longest(batch)
    assert by_tokens.passes(1) == batch.passes(1)


def test_fewer_tokens_a_pass_need_less_memory(job):
    def activations(tokens):
        spec = resolve(job({"spec.batch.microBatchTokens": tokens})).spec
        (update,) = [p for p in plan_memory(spec, TINY).phases if p.name == "update"]
        return update.parts["activations"]

    spec = resolve(job({})).spec
    longest = spec.batch.max_prompt_length + spec.batch.max_response_length

    assert activations(longest) < activations(2 * longest) < activations(10 * longest)


SMALL = replace(TINY, layers=1, hidden=64, intermediate=128)


def test_models_beside_the_policy_count_with_their_own_shapes(job):
    ppo = job({"spec.algorithm": {"name": "ppo"}, "spec.critic": {"path": "critic"}})
    spec = resolve(ppo).spec
    critic = SMALL.scorer().total().total * 4

    found = {p.name: p for p in plan_memory(spec, TINY, {"critic": SMALL}).phases}

    assert found["generate"].parts["critic"] == 3 * critic
    assert found["critic"].parts["gradients"] == critic
    assert found["update"].parts["critic gradients"] == critic
    assert found["update"].parts["gradients"] == WEIGHTS


def test_a_reference_beside_a_critic_computes_with_the_policys_shape(job):
    changes = {"spec.resharding.strategy": "allgather-swap", "spec.critic": {"path": "critic"}}
    params = {"klCoefficient": 0.1}
    spec = resolve(job({**changes, "spec.algorithm": {"name": "ppo", "params": params}})).spec

    found = {p.name: p for p in plan_memory(spec, TINY, {"critic": SMALL}).phases}

    temporary = found["update"].parts["temporary"]
    assert found["reference"].parts["temporary"] == temporary > found["critic"].parts["temporary"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_teacher_and_a_reward_model_stay_on_the_devices_that_train(job, dtype):
    own = {"path": "other", "dtype": dtype}
    changes = {
        "spec.algorithm": {"name": "distillation"},
        "spec.teacher": own,
        "spec.rewards": [{"name": "liked", "type": "model", "model": own}],
    }
    spec = resolve(job(changes)).spec
    others = {"teacher": DENSE, "reward-model": SMALL.scorer()}

    memory = plan_memory(spec, TINY, others)

    item = {"float32": 4, "bfloat16": 2}[dtype]
    for phase in memory.phases:
        assert phase.parts["teacher"] == DENSE.total().total * item
        assert phase.parts["reward-model"] == SMALL.scorer().total().total * item


def test_the_plan_reads_the_shapes_of_models_beside_the_policy(job, tmp_path):
    small = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000,
        "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
        "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(small))
    own = {"spec.algorithm": {"name": "distillation"}, "spec.model": {"builtin": "tiny"}}

    known = make_plan(job({**own, "spec.teacher": {"path": "small"}}), base_dir=tmp_path)
    unknown = make_plan(job({**own, "spec.teacher": {"path": "gone"}}), base_dir=tmp_path)

    assert known.memory.phases[0].parts["teacher"] == DENSE.total().total * 4
    assert unknown.memory.phases[0].parts["teacher"] == WEIGHTS
    assert any("the teacher's shape cannot be read here" in note for note in unknown.notes)
    wrong = {"path": "small", "parallelism": {"pipeline": 8}}
    refused = make_plan(job({**own, **EIGHT, "spec.teacher": wrong}), base_dir=tmp_path)
    assert [p.path for p in refused.problems] == ["spec.teacher.parallelism.pipeline"]
