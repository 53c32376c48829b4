"""Plans between any two layouts of tiny models, executed on elements that know where they belong."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hypothesis import strategies as st

from rljob_api.model.architecture import ExpertSizes, LatentSizes, Shape
from rljob_api.model.tensors import tensors_of
from rljob_api.model.vision import TowerSizes
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.layouts import LayoutTable, rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import Widths

Element = tuple[str, int, int]
WIDTHS = Widths(update=4, rollout=2)

SIZES: dict[str, Any] = {
    "vocab": 7, "hidden": 2, "layers": 7, "intermediate": 4, "heads": 4, "kv_heads": 2, "head_dim": 1,
}  # fmt: skip
LATENT = LatentSizes(query_rank=3, kv_rank=2, nope_dim=1, rope_dim=1, value_dim=1)
SHAPES = {
    "llama": Shape(family="llama", **SIZES),
    "tied": Shape(family="qwen3", tied=True, qk_norm=True, **SIZES),
    "biases": Shape(family="llama", qkv_bias=True, output_bias=True, mlp_bias=True, **SIZES),
    "trained tower": Shape(
        family="qwen3_vl",
        vision=TowerSizes(
            gated=False, depth=2, hidden=2, inner=3, patch=3, merged=1, out=2, positions=3, added=2
        ),
        trains_tower=True,
        tower_outputs=3,
        **SIZES,
    ),
    "qwen3_moe": Shape(
        family="qwen3_moe",
        experts=ExpertSizes(count=12, intermediate=4, dense_layers=(1,)),
        **SIZES,
    ),
    "deepseek": Shape(
        family="deepseek_v3",
        latent=LATENT,
        experts=ExpertSizes(
            count=12, intermediate=4, shared_intermediate=4, first_layer=1, gate_bias=True
        ),
        **SIZES,
    ),
}


@dataclass
class Device:
    """What a device has of either layout: elements by where they belong, and what they say they are.
    update: by tensor."""

    update: dict[str, dict[Element, int]]
    rollout: dict[Element, int] = field(default_factory=dict)


def elements(piece: TensorBox) -> Iterator[Element]:
    box = piece.box
    for row, column in product(range(box.top, box.bottom), range(box.left, box.right)):
        yield piece.tensor.name, row, column


def elements_held(layout: LayoutTable, device: int) -> Counter[Element]:
    return Counter(element for piece in layout.local_boxes(device) for element in elements(piece))


def executed(plan: ReshardPlan) -> Counter[int]:
    """The elements that each device received of others, after all steps.

    Weights of the update layout are gone after their bucket. Whoever reads or writes what is not there, or
    ends with other elements than its slices', fails.
    """
    numbers = {
        element: number
        for number, element in enumerate(
            (tensor.name, row, column)
            for tensor in tensors_of(plan.update.shape)
            for row, column in product(range(tensor.shape[0]), range((*tensor.shape, 1)[1]))
        )
    }
    size = max(plan.update.devices.stop, plan.rollout.devices.stop)
    devices = [Device(defaultdict(dict)) for _ in range(size)]
    for number, device in enumerate(devices):
        for element in elements_held(plan.update, number):
            device.update[element[0]][element] = numbers[element]
    wanted = [elements_held(plan.rollout, number) for number in range(size)]
    received: Counter[int] = Counter()
    for bucket in plan.buckets:
        for step in plan.steps(bucket):
            for source, pieces in step.pieces.items():
                giver, targets = devices[source], set(step.group) - {source} or {source}
                for piece in pieces:
                    given = giver.rollout if step.hop else giver.update[piece.tensor.name]
                    for element, target in product(elements(piece), targets):
                        assert element in wanted[target], (step, element, target)
                        assert element not in devices[target].rollout, (step, element, target)
                        devices[target].rollout[element] = given[element]
                        received[target] += target != source
        for name, device in product(plan.freed(bucket), devices):
            device.update.pop(name, None)
    assert not any(device.update for device in devices)
    for device, expected in zip(devices, wanted, strict=True):
        assert device.rollout == {element: numbers[element] for element in expected}
    return received


NODES: st.SearchStrategy[int | None] = st.sampled_from([None, 2, 4, 8])
DEGREES = st.sampled_from([1, 2, 4])


@st.composite
def update_degrees(draw: st.DrawFn, shape: Shape) -> UpdateDegrees:
    data, context = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    legal = [d for d in (1, 2, 3, 4, 6) if data * context % d == 0] if shape.experts else [1]
    return UpdateDegrees(
        data=data,
        context=context,
        tensor=draw(DEGREES),
        pipeline=draw(st.integers(1, 3)),
        virtual_pipeline=draw(st.integers(1, 2)),
        expert=draw(st.sampled_from(legal)),
        zero=draw(st.sampled_from([0, 1, 3])),
    )


@st.composite
def rollout_degrees(draw: st.DrawFn, shape: Shape) -> RolloutDegrees:
    data, tensor = draw(st.integers(1, 4)), draw(DEGREES)
    legal = [d for d in (1, 2, 3, 4, 6, 12) if data * tensor % d == 0] if shape.experts else [1]
    return RolloutDegrees(
        data=data,
        tensor=tensor,
        pipeline=draw(st.integers(1, 3)),
        expert=draw(st.sampled_from(legal)),
    )


@st.composite
def plans(
    draw: st.DrawFn,
    node_devices: st.SearchStrategy[int | None] = NODES,
) -> ReshardPlan:
    """Between any two layouts of a tiny model, on the same devices or on others."""
    shape = SHAPES[draw(st.sampled_from(sorted(SHAPES)))]
    update = update_layout(shape, draw(update_degrees(shape)))
    separated = draw(st.booleans())
    rollout = rollout_layout(
        shape, draw(rollout_degrees(shape)), first_device=len(update.shards) if separated else 0
    )
    return make_reshard_plan(
        update,
        rollout,
        WIDTHS,
        node_devices=draw(node_devices),
        bucket_bytes=draw(st.sampled_from([None, 1, 200, 10_000])),
    )
