"""Jobs that train low-rank adapters: what is refused, and what they are planned to hold and send."""

import pytest
from small_shapes import DENSE, SPARSE

from rljob_api.check.shape_rules import shape_problems
from rljob_api.model.architecture import ExpertSizes, Shape
from rljob_api.spec.problems import InvalidJob
from rljob_api.topology.resolved import resolve
from rljob_plan.memory import plan_memory
from rljob_plan.update_traffic import plan_traffic

LORA = "spec.update.lora"
TARGETS = f"{LORA}.targetModules"
QUERIES_AND_VALUES = 4 * 8 * ((64 + 64) + (64 + 32))
"""Items of PEFT's default adapters on DENSE: 4 layers, rank 8."""


@pytest.mark.parametrize(
    ("changes", "path", "fragment"),
    [
        ({f"{LORA}.rank": 0}, f"{LORA}.rank", "is 0; must be at least 1"),
        ({f"{LORA}.alpha": 0}, f"{LORA}.alpha", "is 0; must be at least 1"),
        ({f"{LORA}.r": 8}, f"{LORA}.r", "unknown key 'r'"),
        ({TARGETS: []}, TARGETS, "at least 1"),
        ({TARGETS: ["q_proj", "q_proj"]}, TARGETS, "has 'q_proj' 2 times; keep one"),
        ({TARGETS: ["all-linear", "q_proj"]}, TARGETS, "has all-linear beside other names"),
        (
            {LORA: {}, "spec.update.engine": "mindspeed"},
            LORA,
            "has no use with engine mindspeed, which trains all weights; use update.engine: torch",
        ),
    ],
)
def test_a_job_is_refused_with_the_remedy(job, changes, path, fragment):
    with pytest.raises(InvalidJob) as caught:
        job(changes)

    assert any(p.path == path and fragment in p.message for p in caught.value.problems)


@pytest.mark.parametrize(
    ("shape", "changes", "path", "fragment"),
    [
        (
            DENSE,
            {TARGETS: ["q_proj", "qkv_proj"]},
            TARGETS,
            "has qkv_proj, which llama has not as a matrix that can have an adapter; use some of q_proj, "
            "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, or all-linear",
        ),
        (SPARSE, {TARGETS: ["up_proj"]}, TARGETS, "use some of q_proj, k_proj, v_proj, o_proj, or"),
        (
            DENSE,
            {f"{LORA}.rank": 33},
            f"{LORA}.rank",
            "is 33, more than 32, the rank of model.layers.0.self_attn.v_proj.weight itself; use 32 or less",
        ),
    ],
)
def test_adapters_must_fit_the_model(job, shape, changes, path, fragment):
    found = {p.path: p.message for p in shape_problems(job(changes).spec, shape)}

    assert fragment in found[path]


def test_every_stage_of_a_pipeline_needs_an_adapter(job):
    first_dense = Shape(
        family="deepseek_v3", vocab=1000, hidden=64, layers=4, intermediate=128, heads=8, kv_heads=8,
        head_dim=8, experts=ExpertSizes(count=8, intermediate=32, first_layer=1),
    )  # fmt: skip
    changes = {TARGETS: ["up_proj"], "spec.accelerator.devicesPerNode": 2}
    pipeline = changes | {"spec.update.parallelism.pipeline": 2}

    assert shape_problems(job(changes).spec, first_dense) == []
    (problem,) = shape_problems(job(pipeline).spec, first_dense)
    assert problem.path == TARGETS
    assert "leaves layers without an adapter, and with pipeline 2 every stage trains" in (
        problem.message
    )


def test_gradients_and_optimizer_are_planned_for_adapters_and_a_reference_for_nothing(job):
    changes = {
        LORA: {},
        "spec.algorithm": {"name": "grpo", "params": {"klCoefficient": 0.1}},
        "spec.resharding.strategy": "allgather",
    }

    update = {p.name: p for p in plan_memory(resolve(job(changes)).spec, DENSE).phases}["update"]

    passing = ("activations", "temporary", "KV cache")
    held = {n: s for n, s in update.parts.items() if n not in passing}
    weights = DENSE.total().total * 4
    assert held == {
        "update weights": weights,
        "adapters": 4 * QUERIES_AND_VALUES,
        "optimizer": 8 * QUERIES_AND_VALUES,
        "gradients": 4 * QUERIES_AND_VALUES,
        "rollout weights": weights,
    }


def test_devices_send_gradients_of_adapters_alone(job):
    two = {"spec.accelerator.devicesPerNode": 2}

    of_all = plan_traffic(resolve(job(two)).spec, DENSE)
    of_adapters = plan_traffic(resolve(job(two | {LORA: {}})).spec, DENSE)

    assert of_all.data == DENSE.total().total * 4
    assert of_adapters.data == QUERIES_AND_VALUES * 4


def test_a_job_without_adapters_says_nothing_of_them(job):
    assert "lora" not in resolve(job()).spec.model_dump(by_alias=True)["update"]
