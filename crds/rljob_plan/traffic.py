"""Compute the bytes that an update rank sends in a micro-batch, forward and backward, by technique.

Called by `update_traffic`. Collectives count as a ring moves them; a rank receives as many bytes as it sends.
Left out is what grows with neither tokens nor parameters (a norm, flags, the experts' load in a stage), and
the sum of a tied embedding's gradients over two stages. Tokens are assumed to be spread evenly over experts.
"""

# U tokens of a context rank, S those that one tensor rank has outside of matrices, H hidden

from dataclasses import dataclass, fields

from rljob_api.model.architecture import ExpertSizes, Shape
from rljob_api.topology.devices import UpdateDegrees
from rljob_plan.gradient_traffic import all_reduce_bytes

NUMBER_BYTES = 4
"""Bytes of a log-prob, and of a number that ranks exchange about logits and routers."""
INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateWork:
    """Work of a replica in an optimizer step: `passes` equal micro-batches.

    tokens: packed, of one micro-batch: prompts once, and all but the last token of every response. positions:
    tokens that predict a response's token. targets: response tokens.
    """

    tokens: int
    positions: int
    targets: int
    passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTraffic:
    """Bytes that a rank sends in an optimizer step.

    tensor: matrices and vocabulary that are shared, with the tokens between them. context: attention over
    shared sequences. expert: tokens to their experts and back. pipeline: hidden states to other stages. data:
    gradients, and what ZeRO gathers.
    """

    tensor: int = 0
    context: int = 0
    expert: int = 0
    pipeline: int = 0
    data: int = 0

    def __add__(self, other: "UpdateTraffic") -> "UpdateTraffic":
        sums = {
            field_.name: getattr(self, field_.name) + getattr(other, field_.name)
            for field_ in fields(self)
        }
        return UpdateTraffic(**sums)

    def times(self, number: int) -> "UpdateTraffic":
        """Return this traffic multiplied by a number."""
        return UpdateTraffic(**{name: number * sent for name, sent in self.parts().items()})

    @property
    def total(self) -> int:
        """Return the bytes of all techniques."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Return the bytes by technique."""
        return {field_.name: getattr(self, field_.name) for field_ in fields(self)}


class PassTraffic:
    """Traffic of one micro-batch, forward and backward, by module of the model."""

    def __init__(
        self, shape: Shape, degrees: UpdateDegrees, work: UpdateWork, item_bytes: int
    ) -> None:
        self._shape, self._degrees, self._work, self._item = shape, degrees, work, item_bytes
        sharers = degrees.tensor * degrees.context
        self._outside = -(-work.tokens // sharers)
        self._inside = self._outside * degrees.tensor

    def layer(self, index: int) -> UpdateTraffic:
        """Return the traffic of one layer. index: from 0."""
        sparse = self._sparse(index)
        block = (
            self._experts(sparse)
            if sparse
            else UpdateTraffic(tensor=self._columns() + self._rows())
        )
        return block + UpdateTraffic(tensor=self._attention_matrices(), context=self._attention())

    def layer_again(self, index: int) -> UpdateTraffic:
        """Return the forward traffic that is sent again when the backward pass recomputes the layer:
        everything before the last sum, which no gradient needs."""
        hidden, sparse = self._moved(self._shape.hidden), self._sparse(index)
        attention = UpdateTraffic(
            tensor=self._matrices_forward(), context=self._attention_forward()
        )
        if sparse is None:
            return attention + UpdateTraffic(tensor=hidden)
        shared = hidden if sparse.shared_intermediate else 0
        if self._degrees.expert > 1:
            there = self._counts(sparse) + 2 * self._copies(sparse)
            return attention + UpdateTraffic(tensor=shared, expert=there)
        routes = self._moved(1, sparse.chosen * (NUMBER_BYTES + INDEX_BYTES))
        last_sum = hidden if shared else 0
        return attention + UpdateTraffic(tensor=shared + routes + hidden + last_sum)

    def pipeline_sums(self) -> UpdateTraffic:
        """Return what all ranks of a pipeline exchange about each token and each expert."""
        ranks, experts = self._degrees.pipeline, self._shape.experts
        sent = 2 * NUMBER_BYTES * self._work.targets * (ranks - 1) // ranks
        if experts is not None:
            layers = sum(experts.in_layer(layer) for layer in range(self._shape.layers))
            sent += all_reduce_bytes(INDEX_BYTES * layers * experts.count, ranks)
        return UpdateTraffic(pipeline=sent)

    def first(self) -> UpdateTraffic:
        """Return the traffic of the embedding, which is summed like a row-cut matrix."""
        return UpdateTraffic(tensor=self._rows())

    def last(self) -> UpdateTraffic:
        """Return the traffic of the head: hidden states of all tokens, four numbers of each logit, and the
        log-probs of tokens on other ranks."""
        tensor, context = self._degrees.tensor, self._degrees.context
        numbers = 3 * self._work.positions + self._work.targets
        number_bytes = all_reduce_bytes(NUMBER_BYTES * numbers // context, tensor)
        return UpdateTraffic(
            tensor=2 * self._moved(self._shape.hidden) + number_bytes,
            context=all_reduce_bytes(2 * NUMBER_BYTES * self._work.targets, context),
        )

    def to_other_stage(self) -> UpdateTraffic:
        """Return the traffic forward or backward over one end of a chunk of layers."""
        if self._degrees.pipeline == 1:
            return UpdateTraffic()
        load = 2 * self._shape.experts.count if self._shape.experts else 0
        item = (
            NUMBER_BYTES if self._shape.experts else self._item
        )  # with float32 sums of the routers
        return UpdateTraffic(pipeline=(self._outside * self._shape.hidden + load) * item)

    def _sparse(self, layer: int) -> ExpertSizes | None:
        experts = self._shape.experts
        return experts if experts and experts.in_layer(layer) else None

    def _moved(self, features: int, item_bytes: int | None = None) -> int:
        """Return the bytes of gathering [S, features] over the tensor ranks, or of a reduce-scatter of the
        same size."""
        item = self._item if item_bytes is None else item_bytes
        return self._outside * features * item * (self._degrees.tensor - 1)

    def _columns(self, features: int | None = None) -> int:
        """Return the bytes of column-cut matrices on one input: gathered forward and backward, its gradient
        scattered."""
        return 3 * self._moved(self._shape.hidden if features is None else features)

    def _rows(self) -> int:
        """Return the bytes of a row-cut matrix: scattered forward, gathered backward."""
        return 2 * self._moved(self._shape.hidden)

    def _attention_matrices(self) -> int:
        latent = self._shape.latent
        if latent is None:
            return self._columns() + self._rows()
        queries = self._columns(latent.query_rank)
        keys = self._columns(latent.kv_rank) + 2 * self._moved(latent.rope_dim)
        return queries + keys + self._rows()

    def _matrices_forward(self) -> int:
        """Return the bytes of a gather for the column-cut matrices on each input, and of a sum."""
        shape, latent = self._shape, self._shape.latent
        if latent is None:
            return 2 * self._moved(shape.hidden)
        narrow = latent.kv_rank + latent.rope_dim + (latent.query_rank or shape.hidden)
        return self._moved(narrow) + self._moved(shape.hidden)

    def _attention(self) -> int:
        """Return the bytes of attention, forward and backward. A ring also sends float32 gradients
        backward."""
        ranks = self._degrees.context
        gradients = self._inside * ranks * self._ring_width() * NUMBER_BYTES
        ring = ranks > 1 and self._degrees.context_algorithm == "ring"
        return 2 * self._attention_forward() + (gradients if ring else 0)

    def _attention_forward(self) -> int:
        """Return the bytes of attention, forward. Ulysses sends queries, keys and values to heads, and the
        output back. A ring passes keys and values on."""
        ranks = self._degrees.context
        tokens = self._inside * (ranks - 1)
        if self._degrees.context_algorithm == "ring":
            return tokens * self._ring_width() * self._item
        heads, keys, key, value = self._heads()
        to_one = heads // ranks * (key + value) + max(1, keys // ranks) * (key + value)
        return tokens * to_one * self._item

    def _ring_width(self) -> int:
        """Return the width of a token's keys, and of its values padded to that width."""
        _, keys, key, _ = self._heads()
        return 2 * keys * key

    def _heads(self) -> tuple[int, int, int, int]:
        """Return the query heads and key heads of a rank, and the widths of keys and of values."""
        shape = self._shape
        heads = shape.heads // self._degrees.tensor
        keys = max(1, shape.kv_heads // self._degrees.tensor)
        key, value = shape.head_dim, shape.head_dim
        if shape.latent:
            key = shape.latent.nope_dim + shape.latent.rope_dim
            keys, value = heads, shape.latent.value_dim
        return heads, keys, key, value

    def _experts(self, experts: ExpertSizes) -> UpdateTraffic:
        """Return the traffic of copies of tokens to experts and back, or of all tokens if experts are cut
        like matrices."""
        shared = self._columns() + self._rows() if experts.shared_intermediate else 0
        if self._degrees.expert == 1:
            weights, ids = 2 * experts.chosen * NUMBER_BYTES, experts.chosen * INDEX_BYTES
            routes = self._moved(1, weights + ids)
            return UpdateTraffic(tensor=shared + routes + 4 * self._moved(self._shape.hidden))
        return UpdateTraffic(
            tensor=shared, expert=self._counts(experts) + 4 * self._copies(experts)
        )

    def _copies(self, experts: ExpertSizes) -> int:
        """Return the bytes of copies of tokens that are sent to other ranks."""
        ranks = self._degrees.expert
        copies = self._outside * experts.chosen * (ranks - 1) // ranks
        return copies * self._shape.hidden * self._item

    def _counts(self, experts: ExpertSizes) -> int:
        ranks = self._degrees.expert
        return INDEX_BYTES * experts.count * (ranks - 1) // ranks
