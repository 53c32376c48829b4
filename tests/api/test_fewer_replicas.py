"""Training with fewer replicas: which jobs may, and whose are which prompts, by arithmetic."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.check.load import read_job
from rljob_api.spec.problems import InvalidJob
from rljob_api.topology.fewer_replicas import (
    fewest_replicas,
    share_of_mini_batches,
    with_replicas,
)
from rljob_api.topology.resolved import ResolvedBatch, resolve
from rljob_operator.build.resources import warehouses_per_pod
from rljob_plan.plan import make_plan
from rljob_plan.plan_json import plan_json
from rljob_plan.plan_text import plan_text

DEVICES = "spec.accelerator.devicesPerNode"
ELASTIC = "spec.elastic.update"
UPDATE = "spec.update.parallelism"
FOUR = {
    DEVICES: 8,
    "spec.batch.globalBatchSize": 16,
    "spec.placement": {"mode": "separated", "updateDevices": 4, "rolloutDevices": 4},
    ELASTIC: {"minReplicas": 2},
}


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({ELASTIC: {"minReplicas": 0}}, f"{ELASTIC}.minReplicas", "is 0; must be at least 1"),
        ({"spec.elastic": {}}, ELASTIC, "is missing"),
        (
            {ELASTIC: {"minReplicas": 5}},
            f"{ELASTIC}.minReplicas",
            "is 5, more than the 4 replicas that train (spec.update.parallelism.data); use 1 to 4",
        ),
        (
            {"spec.placement": {"mode": "colocated"}},
            ELASTIC,
            "is set, but with placement colocated a device that is missed generates, too; use "
            "placement.mode: separated, or leave spec.elastic.update out",
        ),
        (
            {"spec.update.engine": "megatron"},
            ELASTIC,
            "is set, but the engine megatron trains with the replicas that it was made for; use "
            "update.engine: torch",
        ),
        (
            {f"{UPDATE}.zero": 1},
            f"{UPDATE}.zero",
            "is 1, which shares out over the replicas what spec.elastic.update needs on each of them; use 0",
        ),
        (
            {f"{UPDATE}.tensor": 2},
            f"{UPDATE}.tensor",
            "is 2, but spec.elastic.update leaves out single devices, each of which holds all of the model; "
            "use 1, or leave spec.elastic.update out",
        ),
        (
            {f"{UPDATE}.pipeline": 2},
            f"{UPDATE}.pipeline",
            "is 2, but spec.elastic.update leaves out",
        ),
        ({f"{UPDATE}.context": 2}, f"{UPDATE}.context", "is 2, but spec.elastic.update leaves out"),
        ({f"{UPDATE}.expert": 2}, f"{UPDATE}.expert", "is 2, but spec.elastic.update leaves out"),
        (
            {"spec.algorithm.name": "ppo", "spec.critic.parallelism.zero": 2},
            "spec.critic.parallelism.zero",
            "is 2, which shares out over the replicas what spec.elastic.update needs",
        ),
        (
            {
                "spec.algorithm.name": "distillation",
                "spec.teacher": {"path": "teacher", "parallelism": {"tensor": 2}},
            },
            "spec.teacher.parallelism.tensor",
            "is 2, but spec.elastic.update leaves out single devices",
        ),
        (
            {
                "spec.rewards": [
                    {
                        "name": "model",
                        "type": "model",
                        "model": {"path": "reward", "parallelism": {"pipeline": 2}},
                    }
                ]
            },
            "spec.rewards[0].model.parallelism.pipeline",
            "is 2, but spec.elastic.update leaves out single devices",
        ),
    ],
)
def test_what_cannot_go_on_without_a_device_is_refused(
    manifest: Any, changes: dict[str, Any], path: str, message: str
) -> None:
    read_job(manifest(FOUR))

    with pytest.raises(InvalidJob) as invalid:
        read_job(manifest(FOUR | changes))

    told = {problem.path: problem.message for problem in invalid.value.problems}
    assert path in told, told
    assert message in told[path]


def test_a_job_without_the_field_needs_all_of_its_replicas(manifest: Any) -> None:
    assert fewest_replicas(read_job(manifest(FOUR)).spec) == 2
    assert fewest_replicas(read_job(manifest({})).spec) is None


def test_with_fewer_replicas_a_micro_batch_is_as_large_and_there_are_more(manifest: Any) -> None:
    spec = resolve(read_job(manifest(FOUR))).spec

    fewer = with_replicas(spec, 2)

    assert fewer.roles.update == fewer.update.parallelism.data == 2
    assert fewer.batch.micro_batch_size == spec.batch.micro_batch_size == 4
    assert (spec.batch.passes(4), fewer.batch.passes(2)) == (1, 2)
    assert with_replicas(fewer, 4) == spec


def test_pods_that_stay_have_room_for_the_warehouses_of_lost_ones(manifest: Any) -> None:
    one_a_node = FOUR | {DEVICES: 1}

    assert warehouses_per_pod(read_job(manifest(one_a_node)).spec) == 2
    del one_a_node[ELASTIC]
    assert warehouses_per_pod(read_job(manifest(one_a_node)).spec) == 1


@st.composite
def batches(draw: st.DrawFn) -> tuple[ResolvedBatch, int]:
    """Sizes of a step, and replicas that a mini-batch has a prompt for at least each."""
    mini, several = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    batch = ResolvedBatch.model_construct(
        global_batch_size=mini * several, mini_batch_size=mini, micro_batch_size=1
    )
    return batch, draw(st.integers(1, mini))


@given(batches(), st.booleans())
def test_all_replicas_together_train_on_each_mini_batch_and_nobody_on_nothing(
    found: tuple[ResolvedBatch, int], balanced: bool
) -> None:
    batch, replicas = found

    shares = [
        share_of_mini_batches((replica, replicas), batch, balanced=balanced)
        for replica in range(replicas)
    ]

    for each in zip(*shares, strict=True):
        assert sum(each) == batch.mini_batch_size
        assert 1 <= min(each) <= max(each) <= min(each) + 1


@given(batches())
def test_a_replicas_prompts_are_every_so_many_th_of_the_step(
    found: tuple[ResolvedBatch, int],
) -> None:
    batch, replicas = found
    mini_batch_of = [prompt // batch.mini_batch_size for prompt in range(batch.global_batch_size)]

    for replica in range(replicas):
        own = mini_batch_of[replica::replicas]
        expected = [own.count(number) for number in range(max(mini_batch_of) + 1)]
        assert share_of_mini_batches((replica, replicas), batch, balanced=False) == expected


def test_the_plan_tells_what_a_step_with_the_fewest_replicas_takes(
    manifest: Any, tmp_path: Path
) -> None:
    whole, three = (
        make_plan(read_job(manifest(FOUR | changes)), base_dir=tmp_path)
        for changes in ({}, {ELASTIC: {"minReplicas": 3}})
    )

    told = plan_json(whole)["fewestReplicas"]
    assert told["replicas"] == 2
    assert (told["promptsOfMiniBatch"], told["passesOfMiniBatch"], told["timesAsLong"]) == (8, 2, 2)
    update = max(
        p["deviceGB"] for p in plan_json(whole)["memory"]["phases"] if p["role"] == "update"
    )
    assert told["deviceGB"] == pytest.approx(update)
    assert "update and inference take 2 times as long" in plan_text(whole)
    assert plan_json(three)["fewestReplicas"]["timesAsLong"] == pytest.approx(6 / 4)
    del (alone := dict(FOUR))[ELASTIC]
    assert (
        plan_json(make_plan(read_job(manifest(alone)), base_dir=tmp_path))["fewestReplicas"] is None
    )
