"""Compute the bytes that an update rank sends of gradients, and of the weights that ZeRO shares out.

Called by `update_traffic`. Collectives count as a ring moves them.
"""

from collections.abc import Iterator

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import RankShard, item_counts
from rljob_api.model.tensors import Cut
from rljob_api.spec.engines import Dtype
from rljob_api.spec.lora import Lora
from rljob_api.topology.devices import UpdateDegrees
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.shards import GRADIENT_BYTES, trained_items


def gradient_traffic(
    shape: Shape,
    degrees: UpdateDegrees,
    shard: RankShard,
    *,
    passes: int,
    dtype: Dtype,
    lora: Lora | None = None,
) -> int:
    """Return the bytes for everything that a rank holds, in an optimizer step. lora: only the adapters are
    trained, and not the weights."""
    if degrees.zero == 3 and degrees.data * degrees.context > 1:
        return _row_traffic(shape, degrees, shard, passes=passes, dtype=dtype, lora=lora)
    stage = min(degrees.zero, 2)
    backward = passes * degrees.virtual_pipeline  # a pass through each chunk of layers
    return sum(
        zero_bytes(items, ranks, stage, backward, dtype)
        for items, ranks in gradient_items(shape, degrees, shard, lora)
    )


def gradient_items(
    shape: Shape, degrees: UpdateDegrees, shard: RankShard, lora: Lora | None = None
) -> Iterator[tuple[int, int]]:
    """Yield the parameters of a rank by the number of ranks that sum their gradients: (items, ranks)."""
    replicas, copies = degrees.data * degrees.context, max(1, degrees.tensor // shape.kv_heads)
    ranks_of = {Cut.WHOLE: replicas * degrees.tensor, Cut.KEY_HEADS: replicas * copies}
    items: dict[int, int] = {}
    for kind, number in trained_items(shape, shard, lora).items():
        ranks = ranks_of.get(kind.cut, replicas)
        if kind.of_expert:
            by_number = replicas * degrees.tensor // degrees.expert
            ranks = by_number if degrees.expert > 1 else replicas
        items[ranks] = items.get(ranks, 0) + number
    yield from ((number, ranks) for ranks, number in items.items())


def zero_bytes(
    items: int, ranks: int, stage: int, passes: int, dtype: Dtype, *, resident: int = 0
) -> int:
    """Return the bytes that parameters and their gradients cause in a step over `ranks`. stage: of ZeRO.

    Stage 0 sums the gradients. Stage 1 runs a reduce-scatter and gathers the weights. Stage 2 runs a
    reduce-scatter after every pass. Stage 3 also gathers the weights twice, but only once for the `resident`
    items that stay gathered for a full pass.
    """
    gradients, weights = items * GRADIENT_BYTES, items * ITEM_BYTES[dtype]
    if stage == 0:
        moved = 2 * gradients
    elif stage == 1:
        moved = gradients + weights
    elif stage == 2:
        moved = passes * gradients + weights
    else:
        moved = passes * (gradients + 2 * weights - resident * ITEM_BYTES[dtype])
    return moved * (ranks - 1) // ranks


def all_reduce_bytes(size: int, ranks: int) -> int:
    """Return the bytes of an all-reduce over ranks."""
    return 2 * size * (ranks - 1) // ranks


def _row_traffic(
    shape: Shape,
    degrees: UpdateDegrees,
    shard: RankShard,
    *,
    passes: int,
    dtype: Dtype,
    lora: Lora | None,
) -> int:
    """Return the bytes for weights whose rows data × context ranks share. Both ends of the model stay
    gathered for a pass, and tensor ranks sum the parameters that they repeat once."""
    ranks, counts = degrees.data * degrees.context, item_counts(shape, shard)
    trained = trained_items(shape, shard, lora)
    ends = sum(number for kind, number in counts.items() if not kind.of_layer)
    replicated = sum(number for kind, number in trained.items() if kind.cut is Cut.WHOLE)
    items, trained_count = sum(counts.values()), sum(trained.values())
    if lora is not None:  # frozen weights are gathered, too, and have no gradients
        items += trained_count
    shared = zero_bytes(items, ranks, 3, passes, dtype, resident=ends)
    shared -= passes * (items - trained_count) * GRADIENT_BYTES * (ranks - 1) // ranks
    return shared + all_reduce_bytes(replicated // ranks * GRADIENT_BYTES, degrees.tensor)
