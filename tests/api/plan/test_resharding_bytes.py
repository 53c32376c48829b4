"""Bytes of a reshard, counted a second time tensor by tensor, and those of the paper."""

from collections import Counter
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reshards import SHAPES, WIDTHS, plans

from rljob_api.check.load import load_job
from rljob_api.model.architecture import find_shape
from rljob_api.model.layout import slices
from rljob_api.model.tensors import TensorSpec
from rljob_api.model.volumes import GB, redundant_bytes
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_api.topology.resolved import resolve
from rljob_plan.plan import make_plan
from rljob_plan.plan_json import plan_json
from rljob_plan.plan_text import plan_text
from rljob_plan.resharding.figures import count_bytes, peaks
from rljob_plan.resharding.job_layouts import plan_of_job
from rljob_plan.resharding.layouts import LayoutTable, rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import CORRECTION_BIAS, Widths

PAPER = Path(__file__).parents[3] / "examples" / "paper"


def item(tensor: TensorSpec, width: int) -> int:
    return 4 if tensor.name.endswith(CORRECTION_BIAS) else width


def held_bytes(layout: LayoutTable, device: int, width: int) -> Counter[str]:
    """By tensor."""
    return Counter(
        {p.tensor.name: p.box.items * item(p.tensor, width) for p in layout.local_boxes(device)}
    )


def buffered(plan: ReshardPlan, device: int) -> list[int]:
    """What a device sends and receives, by bucket."""
    found = []
    for bucket in plan.buckets:
        steps = [s for s in plan.steps(bucket) if device in s.group and s.kind != "copy"]
        found.append(sum(step.bytes for step in steps))
    return found


def peak_by_hand(plan: ReshardPlan, device: int, *, swaps: bool) -> int:
    """While bucket i is gathered, i-1 is selected and i-2 swapped."""
    update = held_bytes(plan.update, device, WIDTHS.update)
    rollout = held_bytes(plan.rollout, device, WIDTHS.rollout)
    names = [set(plan.freed(bucket)) for bucket in plan.buckets]
    buffers = buffered(plan, device)
    peak = 0
    for i in range(len(names) + 1):
        gone = set().union(*names[: max(0, i - 2)]) if swaps else set()
        there = set().union(*names[:i]) if swaps else set(rollout)
        left = sum(size for name, size in update.items() if name not in gone)
        come = sum(size for name, size in rollout.items() if name in there)
        peak = max(peak, left + come + sum(buffers[max(0, i - 1) : i + 1]))
    return peak


@settings(max_examples=25, deadline=None)
@given(plan=plans(), swaps=st.booleans())
def test_peaks_are_those_of_three_buckets_on_their_way(plan: ReshardPlan, swaps: bool):
    for kind, peak in zip(plan.loads.kinds, peaks(plan, swaps=swaps), strict=True):
        assert peak.total == peak_by_hand(plan, kind[0], swaps=swaps)


@settings(max_examples=60, deadline=None)
@given(plan=plans())
def test_a_peak_is_the_larger_layouts_weights_and_two_buckets_of_two_members(plan: ReshardPlan):
    loads = zip(plan.loads.update, plan.loads.rollout, plan.loads.buffer, strict=True)
    limit = 2 * max(max(map(sum, zip(*rows, strict=True))) for rows in loads)
    plan = make_reshard_plan(plan.update, plan.rollout, WIDTHS, bucket_bytes=limit)

    for kind, peak in zip(plan.loads.kinds, peaks(plan, swaps=True), strict=True):
        update = held_bytes(plan.update, kind[0], WIDTHS.update).total()
        rollout = held_bytes(plan.rollout, kind[0], WIDTHS.rollout).total()
        assert peak.total <= max(update, rollout) + 2 * limit


@pytest.mark.parametrize("name", ["qwen2.5-32b", "qwen3-30b-a3b", "deepseek-r1-671b"])
def test_peaks_of_the_papers_models_are_the_larger_weights_and_two_buckets(name: str):
    spec = resolve(load_job(PAPER / f"{name}.yaml")).spec
    shape = find_shape(spec.model, base_dir=PAPER)
    assert shape is not None
    plan = plan_of_job(spec, shape)

    kept = peaks(plan, swaps=False)
    swapped = peaks(plan, swaps=True)

    bucket = count_bytes(plan).largest_bucket
    for one, other in zip(kept, swapped, strict=True):
        assert other.total <= max(one.update, one.rollout) + 2 * bucket
        assert other.total < 0.8 * one.total


@settings(max_examples=50, deadline=None)
@given(plan=plans())
def test_no_byte_is_moved_that_its_device_has(plan: ReshardPlan):
    figures = count_bytes(plan)

    missing = Counter[int]()
    for device in plan.rollout.devices:
        held = {piece.tensor.name: piece.box for piece in plan.update.local_boxes(device)}
        for tensor, box in plan.rollout.local_boxes(device):
            there = box.meet(held[tensor.name]).items if tensor.name in held else 0
            missing[device] += (box.items - there) * item(
                tensor, min(WIDTHS.update, WIDTHS.rollout)
            )
    assert figures.moved == figures.lower_bound == missing.total()
    assert figures.received == max(missing.values())


@settings(max_examples=30, deadline=None)
@given(plan=plans())
def test_a_bucket_keeps_its_limit_unless_it_is_one_member(plan: ReshardPlan):
    for bucket, (update, rollout, buffer) in zip(plan.buckets, plan.bucket_loads, strict=True):
        fullest = max(map(sum, zip(update, rollout, buffer, strict=True)))
        assert fullest <= plan.bucket_bytes or len(bucket) == 1


@settings(max_examples=20, deadline=None)
@given(plan=plans())
def test_the_largest_step_is_that_of_all_buckets(plan: ReshardPlan):
    sent = [
        step.bytes for bucket in plan.buckets for step in plan.steps(bucket) if step.kind != "copy"
    ]

    assert count_bytes(plan).largest_step == max(sent, default=0)


def paper_plan(name: str, **layouts: object) -> ReshardPlan:
    job = load_job(PAPER / f"{name}.yaml")
    shape = find_shape(job.spec.model, base_dir=PAPER)
    assert shape is not None
    return make_reshard_plan(
        update_layout(shape, UpdateDegrees.model_validate(layouts["update"])),
        rollout_layout(shape, RolloutDegrees.model_validate(layouts["rollout"])),
        Widths(update=2, rollout=2),
    )


def test_tp8dp2_to_tp4dp4_of_qwen_32b_frees_8_gb_of_a_device():
    plan = paper_plan(
        "qwen2.5-32b", update={"data": 2, "tensor": 8}, rollout={"data": 4, "tensor": 4}
    )

    kept = peaks(plan, swaps=False)[0].update

    assert kept / GB == pytest.approx(7.63, abs=0.01)
    assert kept / 1e9 == pytest.approx(8.19, abs=0.01)
    assert count_bytes(plan).retained == 16 * kept  # after a swap: 0


def test_figure_3s_layouts_of_qwen_30b_keep_60_gb_by_equation_3():
    plan = paper_plan(
        "qwen3-30b-a3b",
        update={"data": 2, "tensor": 2, "expert": 2},
        rollout={"data": 4, "expert": 4},
    )
    whole = plan.update.shape.total()

    redundant = redundant_bytes(
        tensor_bytes=2 * whole.tensor,
        expert_bytes=2 * whole.experts,
        update_tensor=2,
        rollout_expert=4,
        rollout_data=4,
    )

    assert redundant / GB == pytest.approx(59.7, abs=0.1)
    # A device trains with half of the matrices and experts; Eq. 3 counts the quarter that it selects from.
    assert count_bytes(plan).retained / GB == pytest.approx(4 * (2.85 / 2 + 54 / 2), abs=0.3)


def test_ranks_of_the_papers_384_multiply_to_all_devices():
    job = load_job(PAPER / "deepseek-r1-671b.yaml")
    shape = find_shape(job.spec.model, base_dir=PAPER)
    assert shape is not None
    update = UpdateDegrees(tensor=4, pipeline=6, data=2, context=8, expert=16)
    rollout = RolloutDegrees(tensor=2, pipeline=1, data=192, expert=64)

    trained, generated = update_layout(shape, update), rollout_layout(shape, rollout)

    # TP4 PP6 DP2 × context 8, EP16 = DP2 × context 8; EP64 × DP6, TP2 inside EP64
    assert len(trained.shards) == 4 * 6 * 2 * 8 == 384
    assert len(generated.shards) == 64 * 6 == 192 * 2 == 384
    experts = [part.expert for part in generated.shards]
    assert Counter(experts) == dict.fromkeys(range(64), 6)
    for rank in (0, 131, 383):
        whole = sum(prod(piece.shape) for piece in slices(shape, trained.shards[rank]))
        assert sum(piece.box.items for piece in trained.local_boxes(rank)) == whole


def test_a_plan_shows_what_a_reshard_moves_and_holds():
    job = load_job(PAPER / "qwen2.5-32b.yaml")
    vllm = plan_json(make_plan(job, base_dir=PAPER))["resharding"]
    rollout = job.spec.rollout.model_copy(update={"engine": "torch"})
    spec = job.spec.model_copy(update={"rollout": rollout})
    plan = make_plan(job.model_copy(update={"spec": spec}), base_dir=PAPER)

    shown = plan_json(plan)["resharding"]

    assert shown["keptGB"] == {"allgather": pytest.approx(122.07, abs=0.01), "allgather-swap": 0}
    assert shown["plan"]["movedGB"] == shown["plan"]["lowerBoundGB"]
    assert shown["plan"]["betweenNodesGB"] == 0
    peak = shown["peakGBPerDevice"]
    assert peak["allgather-swap"] < 15.26 + 2 * shown["plan"]["largestBucketGB"]
    assert peak["allgather"] > 15.25 + 7.62
    assert vllm["peakGBPerDevice"]["allgather-swap"] == peak["allgather"]
    assert plan.memory is not None
    (reshard,) = [phase for phase in plan.memory.phases if phase.name == "reshard"]
    weights = ("update weights", "rollout weights", "buffers")
    assert sum(reshard.parts[name] for name in weights) / GB == peak["allgather-swap"]
    text = plan_text(plan)
    assert "122 GB by these layouts, 7.63 GB on a device; with allgather-swap none" in text
    assert "214 GB of at least 214 GB" in text
    assert shown["keptGBPerDevice"] == {
        "allgather": pytest.approx(7.63, abs=0.01),
        "allgather-swap": 0,
    }
    assert shown["boundGBPerDevice"] == pytest.approx(
        15.26 + 2 * shown["plan"]["largestBucketGB"], abs=0.01
    )


def test_separated_devices_keep_nothing_twice():
    shape = SHAPES["tied"]
    update = update_layout(shape, UpdateDegrees(data=1, tensor=2))
    rollout = rollout_layout(shape, RolloutDegrees(data=2), first_device=2)

    plan = make_reshard_plan(update, rollout, WIDTHS)

    assert count_bytes(plan).moved == 2 * 2 * shape.total().total
    assert not set(update.devices) & set(rollout.devices)
    assert not list(update.local_boxes(2)) and not list(rollout.local_boxes(0))
