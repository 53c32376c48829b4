"""Memory of hosts that weights and states take which leave their devices, by hand, and what is refused."""

import pytest

from rljob_api.model.architecture import BUILTINS
from rljob_api.topology.resolved import resolve
from rljob_plan.host_memory import plan_host
from rljob_plan.memory import plan_memory
from rljob_plan.memory_rules import host_problems, machine_problem
from rljob_plan.plan import machine_problems, make_plan, model_problems
from rljob_plan.plan_json import plan_json
from rljob_plan.plan_text import plan_text

TINY = BUILTINS["tiny"]
WEIGHTS = TINY.total().total * 4
SWAP = {"spec.resharding.strategy": "allgather-swap"}
KL = {"spec.algorithm": {"name": "grpo", "params": {"klCoefficient": 0.1}}}
OFFLOAD = {"spec.update.offload": "optimizer"}
FOUR = {"spec.accelerator.devicesPerNode": 4}
LIMIT = "spec.podTemplates.worker.resources.limits.memory"


@pytest.fixture
def host(job):
    def of(changes):
        spec = resolve(job(changes)).spec
        return plan_host(spec, plan_memory(spec, TINY))

    return of


def test_nothing_is_on_the_host_without_swap_and_offload(host):
    assert host({"spec.resharding.strategy": "allgather"} | KL).parts == {}


def test_a_swap_keeps_update_weights_and_reference_of_all_devices_of_a_node(host):
    found = host(SWAP | KL | FOUR)

    assert found.devices == 4
    assert found.parts == {"update weights": 4 * WEIGHTS, "reference": 4 * WEIGHTS}
    assert found.limit is None


def test_an_offload_keeps_two_moments_of_each_weight(host):
    found = host(SWAP | OFFLOAD)

    assert found.parts == {"update weights": WEIGHTS, "optimizer": 2 * WEIGHTS}


def test_tensor_degrees_leave_less_on_each_host(host):
    whole, cut = host(SWAP | FOUR), host(SWAP | FOUR | {"spec.update.parallelism.tensor": 4})

    assert cut.total < 0.3 * whole.total


def test_separated_devices_that_generate_keep_nothing(host):
    changes = {"spec.placement": {"mode": "separated", "updateDevices": 2, "rolloutDevices": 2}}

    found = host(FOUR | OFFLOAD | changes)

    assert found.devices == 2
    assert found.parts == {"optimizer": 2 * 2 * WEIGHTS}


AHEAD = {
    "spec.flow": {"mode": "async"},
    "spec.placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 4},
}


def test_a_device_that_generates_while_weights_come_keeps_the_whole_model_on_its_host(host):
    narrow = {"spec.rollout.dtype": "bfloat16"}
    one_node = {"spec.accelerator.devicesPerNode": 5}
    three_nodes = {"spec.accelerator.devicesPerNode": 2, "spec.accelerator.nodes": 3}

    assert host(one_node | AHEAD).parts == {"arriving weights": 4 * WEIGHTS}
    assert host(one_node | AHEAD | narrow).parts == {"arriving weights": 4 * WEIGHTS // 2}
    assert host(three_nodes | AHEAD).parts == {"arriving weights": 2 * WEIGHTS}
    assert host(one_node | AHEAD | {"spec.flow": {"mode": "streaming"}}).parts == {}


def test_the_fullest_node_of_separated_devices_is_counted(host):
    three_nodes = {"spec.accelerator.devicesPerNode": 2, "spec.accelerator.nodes": 3}

    found = host(three_nodes | AHEAD | OFFLOAD)

    assert found.devices == 2
    assert found.parts == {"optimizer": 2 * WEIGHTS, "arriving weights": WEIGHTS}


@pytest.mark.parametrize(
    ("resources", "limit"),
    [
        ({"limits": {"memory": "3Gi"}}, 3 * 2**30),
        ({"requests": {"memory": "3Gi"}, "limits": {"memory": 5000000000}}, 5_000_000_000),
        ({"requests": {"memory": "3Gi"}}, None),
        ({"requests": {"cpu": 3}}, 8 * 64 * 2**30),
    ],
)
def test_worker_pods_may_use_what_their_template_says_or_64_gib_a_device(host, resources, limit):
    changes = {
        "spec.accelerator": {"type": "ascend910b", "devicesPerNode": 8},
        "spec.update.engine": "mindspeed",
        "spec.podTemplates": {"worker": {"resources": resources}},
    }

    assert host(SWAP | changes).limit == limit


def test_a_host_without_room_is_refused_with_its_parts_and_remedies(job, tmp_path):
    two = 2 * WEIGHTS
    changes = SWAP | KL | {"spec.podTemplates": {"worker": {"resources": {}}}}
    limits = {"spec.podTemplates.worker.resources.limits": {"memory": str(two - 1)}}
    enough = {"spec.podTemplates.worker.resources.limits": {"memory": str(two)}}

    (problem,) = model_problems(job(changes | limits), base_dir=tmp_path)

    assert problem.path == LIMIT
    size = f"{WEIGHTS / 2**20:.3g}Mi"
    assert f"takes up to {two / 2**20:.3g}Mi of its host's memory (update weights {size}, " in (
        problem.message
    )
    assert problem.message.endswith(
        f"reference {size}); use more, or set spec.resharding.strategy: allgather, or use a smaller model"
    )
    assert make_plan(job(changes | limits), base_dir=tmp_path).problems == [problem]
    assert model_problems(job(changes | enough), base_dir=tmp_path) == []


def test_an_offload_alone_names_its_own_remedy(job):
    spec = resolve(job(OFFLOAD | {"spec.resharding.strategy": "allgather"})).spec

    (problem,) = machine_problem(spec, plan_memory(spec, TINY), 2 * WEIGHTS - 1)

    assert problem.path == "spec.update.offload"
    assert problem.message.startswith("is optimizer, which takes up to")
    assert "free some, or set spec.update.offload: none, or use a smaller model" in problem.message


def test_a_machine_holds_what_leaves_all_emulated_devices(job, tmp_path):
    changed = job(SWAP | FOUR | {"spec.accelerator.nodes": 2})

    (problem,) = machine_problems(changed, base_dir=tmp_path, available=8 * WEIGHTS - 1)

    assert problem.path == "spec.resharding.strategy"
    assert problem.message.startswith("is allgather-swap, which takes up to")
    assert machine_problems(changed, base_dir=tmp_path, available=8 * WEIGHTS) == []


def test_a_machine_without_room_for_weights_that_come_is_told_of_the_flow(job):
    spec = resolve(job({"spec.accelerator.devicesPerNode": 5} | AHEAD)).spec

    (problem,) = machine_problem(spec, plan_memory(spec, TINY), 4 * WEIGHTS - 1)

    assert problem.path == "spec.flow.mode"
    assert problem.message.startswith("is async, which takes up to")
    assert "set spec.flow.mode: streaming, or use a smaller model" in problem.message


def test_second_copies_are_of_what_one_device_alone_holds(host):
    alone = {"spec.resharding.strategy": "allgather", "spec.update.redundancy": "host"}
    peer, four = (
        alone | {"spec.update.redundancy": "peer"},
        FOUR | {"spec.update.parallelism.zero": 1},
    )
    quarter = -(-(WEIGHTS // 4) // 4) * 4

    assert host(alone).parts == {"second copies": 2 * 3 * WEIGHTS}
    assert host(alone | four).parts == {"second copies": 4 * 2 * 2 * quarter}
    assert host(peer | four).parts == {"second copies": 4 * 4 * 2 * quarter}
    rows = FOUR | {"spec.update.parallelism.zero": 3}
    assert host(peer | rows).parts == {"second copies": 4 * 4 * 3 * quarter}


def test_a_plan_shows_what_second_copies_take(job, tmp_path):
    zero = FOUR | {"spec.update.parallelism.zero": 3, "spec.update.redundancy": "peer"}
    limit = {"spec.podTemplates.worker": {"resources": {"limits": {"memory": "4Mi"}}}}
    plan = make_plan(job(zero | limit), base_dir=tmp_path)

    copied = 3 * (WEIGHTS // 4) / 2**30
    assert plan_json(plan)["copiedGBPerDevice"] == pytest.approx(copied, rel=1e-3)
    (line,) = [line for line in plan_text(plan).splitlines() if "second copies of what" in line]
    assert "GB a step to its host and from there to another device's, beside what follows: " in line
    assert "set spec.update.redundancy: none" in plan.problems[0].message
    assert plan_json(make_plan(job(FOUR), base_dir=tmp_path))["copiedGBPerDevice"] == 0


def test_a_plan_shows_the_hosts_memory(job, tmp_path):
    limits = {"spec.podTemplates.worker": {"resources": {"limits": {"memory": "1Gi"}}}}
    plan = make_plan(job(SWAP | KL | FOUR | limits), base_dir=tmp_path)

    assert plan_json(plan)["host"] == {
        "devices": 4,
        "memoryGB": 8 * WEIGHTS / 2**30,
        "parts": {"update weights": 4 * WEIGHTS / 2**30, "reference": 4 * WEIGHTS / 2**30},
        "limitGB": 1.0,
    }
    assert "  host of a node, for its 4 devices: " in plan_text(plan)
    assert plan.host is not None and host_problems(plan.job.spec, plan.host) == []
