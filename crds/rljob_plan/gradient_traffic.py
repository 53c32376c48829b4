"""Bytes that an update rank sends of gradients, and of the weights that ZeRO shares out, by arithmetic.

Called by `traffic`. Collectives count as a ring moves them.
"""

from collections.abc import Iterator

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import Part, held_items
from rljob_api.model.tensors import Cut
from rljob_api.spec.engines import Dtype
from rljob_api.spec.lora import Lora
from rljob_api.topology.devices import UpdateDegrees
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.shards import GRADIENT_BYTES, trained_items


def gradient_traffic(
    shape: Shape,
    degrees: UpdateDegrees,
    part: Part,
    *,
    passes: int,
    dtype: Dtype,
    lora: Lora | None = None,
) -> int:
    """Of all that a rank holds, in an optimizer step. lora: of the adapters
    that are trained in place of the weights."""
    if degrees.zero == 3 and degrees.data * degrees.context > 1:
        return _row_traffic(shape, degrees, part, passes=passes, dtype=dtype, lora=lora)
    stage = min(degrees.zero, 2)
    backward = passes * degrees.virtual_pipeline  # a pass through each chunk of layers
    return sum(
        zero_bytes(items, ranks, stage, backward, dtype)
        for items, ranks in gradient_items(shape, degrees, part, lora)
    )


def gradient_items(
    shape: Shape, degrees: UpdateDegrees, part: Part, lora: Lora | None = None
) -> Iterator[tuple[int, int]]:
    """Parameters of a rank by the number of ranks that add up their gradients: (items, ranks)."""
    replicas, copies = degrees.data * degrees.context, max(1, degrees.tensor // shape.kv_heads)
    ranks_of = {Cut.WHOLE: replicas * degrees.tensor, Cut.KEY_HEADS: replicas * copies}
    items: dict[int, int] = {}
    for held, number in trained_items(shape, part, lora).items():
        ranks = ranks_of.get(held.cut, replicas)
        if held.of_expert:
            by_number = replicas * degrees.tensor // degrees.expert
            ranks = by_number if degrees.expert > 1 else replicas
        items[ranks] = items.get(ranks, 0) + number
    yield from ((number, ranks) for ranks, number in items.items())


def zero_bytes(
    items: int, ranks: int, stage: int, passes: int, dtype: Dtype, *, kept: int = 0
) -> int:
    """What becomes of parameters and their gradients in a step over `ranks`. stage: of ZeRO.

    A sum (0), a scattered sum and a gather of the weights (1), a scattered sum after every pass (2), and
    two gathers as well (3), but one of the `kept` items that stay gathered for a whole pass.
    """
    gradients, weights = items * GRADIENT_BYTES, items * ITEM_BYTES[dtype]
    if stage == 0:
        moved = 2 * gradients
    elif stage == 1:
        moved = gradients + weights
    elif stage == 2:
        moved = passes * gradients + weights
    else:
        moved = passes * (gradients + 2 * weights - kept * ITEM_BYTES[dtype])
    return moved * (ranks - 1) // ranks


def summed(whole_bytes: int, ranks: int) -> int:
    """Of a sum over ranks."""
    return 2 * whole_bytes * (ranks - 1) // ranks


def _row_traffic(
    shape: Shape,
    degrees: UpdateDegrees,
    part: Part,
    *,
    passes: int,
    dtype: Dtype,
    lora: Lora | None,
) -> int:
    """Of weights whose rows data × context ranks share: both ends of the model stay gathered for a pass, and
    what tensor ranks repeat is added up over them once."""
    ranks, found = degrees.data * degrees.context, held_items(shape, part)
    trained = trained_items(shape, part, lora)
    ends = sum(number for held, number in found.items() if not held.of_layer)
    whole = sum(number for held, number in trained.items() if held.cut is Cut.WHOLE)
    items, taught = sum(found.values()), sum(trained.values())
    if lora is not None:  # frozen weights are gathered, too, and have no gradients
        items += taught
    shared = zero_bytes(items, ranks, 3, passes, dtype, kept=ends)
    shared -= passes * (items - taught) * GRADIENT_BYTES * (ranks - 1) // ranks
    return shared + summed(whole // ranks * GRADIENT_BYTES, degrees.tensor)
