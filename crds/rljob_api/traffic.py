"""Bytes that an update rank sends in an optimizer step, by technique and by arithmetic.

Called by `plan` and `performance`. Collectives count as a ring moves them; a rank receives as many bytes as
it sends. Left out is what grows with neither tokens nor parameters (a norm, flags, the experts' load) and
the sum of a tied embedding's gradients over two stages. Tokens are taken to go to experts evenly.
"""

# U tokens of a context rank, S of them that one tensor rank has outside of matrices, H hidden

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import prod

from rljob_api.architecture import Experts, Shape
from rljob_api.engines import Dtype, UpdateParallelism
from rljob_api.layout import Part, slices, stages
from rljob_api.memory import GRADIENT_BYTES, ITEM_BYTES
from rljob_api.rljob import RLJobSpec
from rljob_api.tensors import Cut

NUMBER_BYTES = 4
"""Of a log-prob, and of what ranks tell each other of logits and routers."""
INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a replica computes in an optimizer step: `passes` micro-batches, all alike.

    tokens: packed, of one micro-batch: prompts once, of every response all but its last token. positions:
    those of them that predict a response's token. targets: response tokens.
    """

    tokens: int
    positions: int
    targets: int
    passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that a rank sends in an optimizer step.

    tensor: matrices and vocabulary that are shared, with the tokens between them. context: attention over
    shared sequences. expert: tokens to their experts and back. pipeline: hidden states to other stages.
    data: gradients, and what ZeRO gathers.
    """

    tensor: int = 0
    context: int = 0
    expert: int = 0
    pipeline: int = 0
    data: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        sums = {
            one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)
        }
        return Traffic(**sums)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """By technique."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def plan_traffic(spec: RLJobSpec, shape: Shape) -> Traffic:
    """Of the stage that sends most, at the longest lengths. spec: resolved."""
    degrees, work = spec.update.parallelism, longest_work(spec)
    found = [
        stage_traffic(shape, degrees, work, stage, dtype=spec.update.dtype)
        for stage in range(degrees.pipeline)
    ]
    return max(found, key=lambda traffic: traffic.total)


def longest_work(spec: RLJobSpec) -> Work:
    """A mini-batch whose prompts and responses are all of the longest lengths. spec: resolved."""
    batch, data = spec.batch, spec.update.parallelism.data
    assert data and batch.micro_batch_size and batch.mini_batch_size, "resolve() fills them"
    inner = batch.samples_per_prompt * (batch.max_response_length - 1)
    return Work(
        tokens=batch.micro_batch_size * (batch.max_prompt_length + inner),
        positions=batch.micro_batch_size * (1 + inner),
        targets=batch.micro_batch_size * batch.samples_per_prompt * batch.max_response_length,
        passes=batch.mini_batch_size // (data * batch.micro_batch_size),
    )


def stage_traffic(
    shape: Shape, degrees: UpdateParallelism, work: Work, stage: int, *, dtype: Dtype
) -> Traffic:
    """Of one rank of a pipeline stage. degrees: with `data` filled in."""
    number = degrees.pipeline * degrees.virtual_pipeline
    held = tuple(range(stage, number, degrees.pipeline))
    cuts = stages(shape.layers, number)
    sizes = _Sizes(shape, degrees, work, ITEM_BYTES[dtype])
    passed = Traffic()
    for chunk in held:
        passed = sum((sizes.layer(layer) for layer in cuts[chunk]), passed)
        passed += sizes.first() if chunk == 0 else sizes.to_other_stage()
        passed += sizes.last() if chunk == number - 1 else sizes.to_other_stage()
    every_pass = {name: number * work.passes for name, number in passed.parts().items()}
    part = Part.of_stages(
        shape, held, number, tensor=(0, degrees.tensor), expert=(0, degrees.expert)
    )
    return Traffic(**every_pass) + Traffic(
        data=sum(
            zero_bytes(items, ranks, degrees.zero, work.passes, dtype)
            for items, ranks in gradient_items(shape, degrees, part)
        )
    )


def gradient_items(
    shape: Shape, degrees: UpdateParallelism, part: Part
) -> Iterator[tuple[int, int]]:
    """Parameters of a rank by the number of ranks that add up their gradients: (items, ranks)."""
    assert degrees.data is not None, "resolve() fills update.parallelism.data"
    replicas = degrees.data * degrees.context
    copies = max(1, degrees.tensor // shape.kv_heads)
    ranks_of = {Cut.WHOLE: replicas * degrees.tensor, Cut.KEY_HEADS: replicas * copies}
    items: dict[int, int] = {}
    for piece in slices(shape, part):
        ranks = ranks_of.get(piece.tensor.cut, replicas)
        if piece.tensor.expert is not None:
            by_number = replicas * degrees.tensor // degrees.expert
            ranks = by_number if degrees.expert > 1 else replicas
        items[ranks] = items.get(ranks, 0) + prod(piece.shape)
    yield from ((number, ranks) for ranks, number in items.items())


def zero_bytes(items: int, ranks: int, stage: int, passes: int, dtype: Dtype) -> int:
    """What becomes of parameters and their gradients in a step over `ranks`. stage: of ZeRO.

    A sum (0), a scattered sum and a gather of the weights (1), a scattered sum after every pass (2), and
    two gathers as well (3).
    """
    gradients, weights = items * GRADIENT_BYTES, items * ITEM_BYTES[dtype]
    if stage == 0:
        moved = 2 * gradients
    elif stage == 1:
        moved = gradients + weights
    elif stage == 2:
        moved = passes * gradients + weights
    else:
        moved = passes * (gradients + 2 * weights)
    return moved * (ranks - 1) // ranks


class _Sizes:
    """Traffic of one micro-batch, forward and backward, by part of the model."""

    def __init__(
        self, shape: Shape, degrees: UpdateParallelism, work: Work, item_bytes: int
    ) -> None:
        self._shape, self._degrees, self._work, self._item = shape, degrees, work, item_bytes
        together = degrees.tensor * degrees.context
        self._outside = -(-work.tokens // together)
        self._inside = self._outside * degrees.tensor

    def layer(self, index: int) -> Traffic:
        experts = self._shape.experts
        sparse = experts if experts and experts.in_layer(index) else None
        forward = (
            self._experts(sparse) if sparse else Traffic(tensor=self._columns() + self._rows())
        )
        return forward + Traffic(tensor=self._attention_matrices(), context=self._attention())

    def first(self) -> Traffic:
        """The embedding, which is summed as a row-cut matrix is."""
        return Traffic(tensor=self._rows())

    def last(self) -> Traffic:
        """Hidden states of all tokens, four numbers of each logit, and the log-probs of the others'."""
        tensor, context = self._degrees.tensor, self._degrees.context
        numbers = 3 * self._work.positions + self._work.targets
        told = _summed(NUMBER_BYTES * numbers // context, tensor)
        return Traffic(
            tensor=2 * self._moved(self._shape.hidden) + told,
            context=_summed(2 * NUMBER_BYTES * self._work.targets, context),
        )

    def to_other_stage(self) -> Traffic:
        """Forward or backward over one end of a chunk of layers."""
        hidden = self._outside * self._shape.hidden * self._item
        return Traffic(pipeline=hidden if self._degrees.pipeline > 1 else 0)

    def _moved(self, features: int, item_bytes: int | None = None) -> int:
        """A gather of [S, features] over the tensor ranks, or a scattered sum of as much."""
        item = self._item if item_bytes is None else item_bytes
        return self._outside * features * item * (self._degrees.tensor - 1)

    def _columns(self, features: int | None = None) -> int:
        """Column-cut matrices on one input: gathered forward and backward, its gradient scattered."""
        return 3 * self._moved(self._shape.hidden if features is None else features)

    def _rows(self) -> int:
        """A row-cut matrix: scattered forward, gathered backward."""
        return 2 * self._moved(self._shape.hidden)

    def _attention_matrices(self) -> int:
        latent = self._shape.latent
        if latent is None:
            return self._columns() + self._rows()
        queries = self._columns(latent.query_rank)
        keys = self._columns(latent.kv_rank) + 2 * self._moved(latent.rope_dim)
        return queries + keys + self._rows()

    def _attention(self) -> int:
        """Ulysses: queries, keys and values to heads, the output back. Ring: keys and values round, and
        their float32 gradients."""
        shape, ranks = self._shape, self._degrees.context
        if ranks == 1:
            return 0
        heads = shape.heads // self._degrees.tensor
        keys = max(1, shape.kv_heads // self._degrees.tensor)
        key, value = shape.head_dim, shape.head_dim
        if shape.latent:
            key = shape.latent.nope_dim + shape.latent.rope_dim
            keys, value = heads, shape.latent.value_dim
        tokens = self._inside * (ranks - 1)
        if self._degrees.context_algorithm == "ring":
            width = keys * (key + value)
            return 2 * tokens * width * self._item + self._inside * ranks * width * NUMBER_BYTES
        to_one = heads // ranks * (key + value) + max(1, keys // ranks) * (key + value)
        return 2 * tokens * to_one * self._item

    def _experts(self, experts: Experts) -> Traffic:
        """Copies of tokens to experts and back; or, where experts are cut as matrices, all tokens."""
        shared = self._columns() + self._rows() if experts.shared_intermediate else 0
        ranks = self._degrees.expert
        if ranks == 1:
            weights, ids = 2 * experts.chosen * NUMBER_BYTES, experts.chosen * INDEX_BYTES
            routes = self._moved(1, weights + ids)
            return Traffic(tensor=shared + routes + 4 * self._moved(self._shape.hidden))
        copies = self._outside * experts.chosen * (ranks - 1) // ranks
        counts = INDEX_BYTES * experts.count * (ranks - 1) // ranks
        return Traffic(tensor=shared, expert=counts + 4 * copies * self._shape.hidden * self._item)


def _summed(whole_bytes: int, ranks: int) -> int:
    return 2 * whole_bytes * (ranks - 1) // ranks
