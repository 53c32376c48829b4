"""A plan brings every rank exactly its slices, and every byte once."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reshards import SHAPES, elements, elements_held, executed, plans

from rljob_api.check.load import load_job
from rljob_api.model.architecture import find_shape
from rljob_api.model.tensors import tensors_of
from rljob_api.model.volumes import GB
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_api.topology.resolved import resolve
from rljob_plan.resharding.boxes import Box
from rljob_plan.resharding.figures import count_bytes
from rljob_plan.resharding.job_layouts import plan_of_job
from rljob_plan.resharding.layouts import rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import Widths

PAPER = Path(__file__).parents[3] / "examples" / "paper"
BFLOAT16 = Widths(update=2, rollout=2)


@settings(max_examples=50, deadline=None)
@given(plan=plans())
def test_every_rank_ends_with_exactly_its_slices_and_each_byte_moves_once(plan: ReshardPlan):
    received = executed(plan)

    lacking = {
        device: (elements_held(plan.rollout, device) - elements_held(plan.update, device)).total()
        for device in plan.rollout.devices
    }
    assert +received == +Counter(lacking)


@settings(max_examples=30, deadline=None)
@given(plan=plans(node_devices=st.sampled_from([1, 2, 4])))
def test_an_element_comes_once_to_a_node_that_lacks_it(plan: ReshardPlan):
    node = plan.node_devices
    assert node is not None
    entered: Counter[tuple[int, tuple[str, int, int]]] = Counter()
    for step in (step for bucket in plan.buckets for step in plan.steps(bucket)):
        for source, pieces in step.pieces.items():
            away = [target // node for target in step.group if target // node != source // node]
            entered.update((n, e) for n in away for piece in pieces for e in elements(piece))

    needs = {
        (device // node, element)
        for device in plan.rollout.devices
        for element in elements_held(plan.rollout, device)
    }
    has = {
        (device // node, element)
        for device in plan.update.devices
        for element in elements_held(plan.update, device)
    }
    assert entered == Counter(needs - has)


@settings(max_examples=30, deadline=None)
@given(plan=plans())
def test_all_tensors_are_in_one_bucket_each(plan: ReshardPlan):
    names = [name for bucket in plan.buckets for name in plan.freed(bucket)]

    assert sorted(names) == sorted(tensor.name for tensor in tensors_of(plan.update.shape))


def test_tensor_ranks_of_a_node_gather():
    shape = SHAPES["llama"]
    update = update_layout(shape, UpdateDegrees(data=2, tensor=4))
    rollout = rollout_layout(shape, RolloutDegrees(data=8, tensor=1))

    plan = make_reshard_plan(update, rollout, BFLOAT16, node_devices=8, bucket_bytes=10**6)

    (bucket,) = plan.buckets
    steps = [step for step in plan.steps(bucket) if step.kind != "copy"]
    assert {(step.kind, step.group) for step in steps} >= {
        ("gather", (0, 1, 2, 3)),
        ("gather", (4, 5, 6, 7)),
    }
    assert {step.kind for step in steps} <= {"gather", "broadcast"}  # of key heads and norms


def test_equal_layouts_copy_alone():
    shape = SHAPES["qwen3_moe"]
    update = update_layout(shape, UpdateDegrees(data=2, tensor=2))
    rollout = rollout_layout(shape, RolloutDegrees(data=2, tensor=2))

    plan = make_reshard_plan(update, rollout, BFLOAT16)

    kinds = {step.kind for bucket in plan.buckets for step in plan.steps(bucket)}
    assert kinds == {"copy"}
    assert count_bytes(plan).moved == 0


@given(rows=st.integers(1, 40), ranks=st.integers(1, 9))
def test_zero_3_cuts_rows_as_fsdp2_does(rows: int, ranks: int):
    shape = replace(SHAPES["llama"], vocab=rows)
    layout = update_layout(shape, UpdateDegrees(data=ranks, zero=3))
    embedding = next(tensors_of(shape))

    found = sorted(box.size[0] for box in layout.holders(embedding))

    assert found == sorted(len(part) for part in torch.arange(shape.vocab).chunk(ranks))


def deepseek_plan() -> ReshardPlan:
    spec = resolve(load_job(PAPER / "deepseek-r1-671b.yaml")).spec
    shape = find_shape(spec.model, base_dir=PAPER)
    assert shape is not None
    return plan_of_job(spec, shape)


def test_the_plan_of_671b_on_384_devices_is_made_of_few_parts():
    plan = deepseek_plan()

    assert len(list(tensors_of(plan.update.shape))) > 45_000
    assert len(plan.stacks) < 150
    assert sum(map(len, plan.moves)) < 30_000
    assert sum(map(len, plan.buckets)) < 2000
    assert len(plan.loads.kinds) < 100


def test_all_384_devices_get_their_boxes_whole_once_and_from_who_has_them():
    plan = deepseek_plan()
    names: Counter[str] = Counter()
    for stack, moves in zip(plan.stacks, plan.moves, strict=True):
        for number in range(stack.members):
            names.update(tensor.name for tensor in stack.member(number))
        for number, tensor in enumerate(stack.tensors):
            boxes: dict[int, list[Box]] = {}
            held = {d: b for b, devices in plan.update.holders(tensor).items() for d in devices}
            for move in sorted((m for m in moves if m.tensor == number), key=lambda m: m.hop):
                if move.hop:
                    assert move.box in boxes[move.source]
                else:
                    assert held[move.source].meet(move.box) == move.box
                for target in move.targets:
                    assert all(not box.meet(move.box).items for box in boxes.get(target, []))
                    boxes.setdefault(target, []).append(move.box)
            for wanted, devices in plan.rollout.holders(tensor).items():
                for device in devices:
                    got = boxes.pop(device)
                    assert sum(box.items for box in got) == wanted.items
                    assert all(box.meet(wanted) == box for box in got)
            assert not boxes

    assert names == Counter(tensor.name for tensor in tensors_of(plan.update.shape))
    figures = count_bytes(plan)
    assert figures.moved == figures.lower_bound
    assert figures.moved // GB == 12_217
