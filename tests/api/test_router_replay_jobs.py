"""Jobs that replay the rollout's routes: what is refused, and what they put into the dock."""

import pytest
from small_shapes import DENSE, SPARSE

from rljob_api.check.run_rules import refusals
from rljob_api.check.shape_rules import shape_problems
from rljob_api.model.architecture import ExpertSizes, Shape
from rljob_api.model.volumes import GB
from rljob_api.topology.resolved import resolve
from rljob_plan.plan import plan_samples
from rljob_runtime.samples.flow import ROUTES, state_graph, written_bytes

REPLAY = "spec.update.routerReplay"
MANY = Shape(
    family="deepseek_v3", vocab=1000, hidden=64, layers=4, intermediate=128, heads=8, kv_heads=8,
    head_dim=8, experts=ExpertSizes(count=257, intermediate=32, chosen=8, first_layer=1),
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        (
            {"spec.rollout.engine": "vllm"},
            "is true with spec.rollout.engine: vllm; rljob run cannot",
        ),
        ({"spec.update.engine": "megatron"}, "use spec.update.engine: torch, or false"),
    ],
)
def test_engines_that_tell_or_take_no_routes_are_refused(job, changes, fragment):
    [problem] = refusals(job({REPLAY: True, **changes}), SPARSE)

    assert problem.path == REPLAY
    assert fragment in problem.message


def test_a_model_of_unknown_shape_is_refused(job):
    changes = {REPLAY: True, "spec.model": {"path": "gemma"}}

    [problem] = refusals(job(changes))

    assert problem.message.startswith("is true, but the shape of gemma is unknown")


def test_a_dense_model_and_a_dock_without_room_are_refused(job):
    [dense] = shape_problems(job({REPLAY: True}).spec, DENSE)
    [full] = shape_problems(job({REPLAY: True, "spec.dock.capacity": "1Mi"}).spec, MANY)

    assert dense.path == REPLAY
    assert dense.message == "is true, but the model (llama) has no experts; leave it out"
    assert full.path == "spec.dock.capacity"
    assert shape_problems(job({"spec.dock.capacity": "1Mi"}).spec, MANY) == []


def test_routes_are_planned_once_a_sample(job):
    plain, replayed = (resolve(job({REPLAY: replays})) for replays in (False, True))
    batch = plain.spec.batch
    samples = batch.global_batch_size * batch.samples_per_prompt
    sample = 3 * 8 * 2 * (batch.max_prompt_length + batch.max_response_length)  # 16 bits

    without, found = plan_samples(plain, MANY), plan_samples(replayed, MANY)

    for volume in ("stage_gb", "total_gb"):
        more = getattr(found.flow, volume)() - getattr(without.flow, volume)()
        assert more == pytest.approx(samples * sample / GB)
    each = [s.flow.per_warehouse_gb(warehouses=2, controllers=5) for s in (without, found)]
    assert each[1] - each[0] == pytest.approx(samples * sample / GB / 2)
    assert found.stored > without.stored
    spec, states = replayed.spec, {s.name: s for s in state_graph(replayed.spec).states}
    assert ROUTES in states["generate"].writes and ROUTES in states["update"].needs
    room = [written_bytes(spec, states=None, route_bytes=each) for each in (0, MANY.route_bytes)]
    assert room[1] - room[0] == sample


def test_a_job_that_replays_nothing_says_nothing_of_it(job):
    spec = resolve(job({})).spec

    assert "routerReplay" not in spec.update.model_dump(by_alias=True)
    assert plan_samples(resolve(job({})), SPARSE).flow.route_bytes == 0
