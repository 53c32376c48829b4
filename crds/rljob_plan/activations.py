"""Bytes that an update rank holds of a micro-batch between its forward and its backward pass, by arithmetic.

Called by `shards`. It is what an update engine keeps, tensor by tensor, and the largest temporary ones
beside it; `tests/parallel/decoder/test_planned_memory.py` measures both of the engine `torch`,
`tests/update/test_megatron_memory.py` of `megatron`, and `tests/models/test_planned_tower.py` of a vision
tower that is trained. Left out is what grows with neither
tokens times features nor the vocabulary (indices, angles, norms' scales). Tokens are taken to go to experts
evenly.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rljob_api.model.architecture import Experts, Parameters, Shape
from rljob_api.model.layout import layers_alike, stages, stages_apart
from rljob_api.spec.engines import Recompute
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedBatch
from rljob_plan.engines import TORCH, PlannedEngine

NUMBER_BYTES = 4
"""Of what is computed in float32 whatever the weights' type."""
INDEX_BYTES = 8
LOGITS_AT_ONCE = 1 << 25
"""Values of the logits that the engine has at a time; an eighth of them twice."""
BUCKET_BYTES = 32 * 2**20
"""Of gradients that go out together, where ranks keep parts of the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A micro-batch. prompts: each once. tokens: packed, each prompt once, of every response all but its last
    token. keys: that its sequences look at, a prompt's once for each response. scores: of responses' tokens
    with those keys. positions: that predict a response's token."""

    prompts: int
    tokens: int
    keys: int
    scores: int
    positions: int

    @classmethod
    def longest(cls, batch: ResolvedBatch) -> "Packed":
        """Of the longest lengths. batch: with `microBatchSize` filled in."""
        samples = batch.samples_per_prompt
        lengths = (batch.max_prompt_length, batch.max_response_length)
        if batch.micro_batch_tokens is None:
            return cls.of(batch.micro_batch_size or 1, samples, *lengths)
        return cls.filling(batch.micro_batch_tokens, samples, *lengths)

    @classmethod
    def filling(cls, limit: int, samples: int, prompt: int, response: int) -> "Packed":
        """As much of whole groups, and of one more, as has `limit` tokens; scaled to all of them, since
        shorter samples fill what is left."""
        groups, left = divmod(limit, prompt + samples * response)
        more = min(samples, max(0, left - prompt) // response)
        parts = [cls.of(groups, samples, prompt, response)]
        if more:
            parts.append(cls.of(1, more, prompt, response))
        filled = limit - left + (prompt + more * response if more else 0)

        def scaled(counts: Iterable[int]) -> int:
            return -(-sum(counts) * limit // filled)

        return cls(
            prompts=scaled(part.prompts for part in parts),
            tokens=scaled(part.tokens for part in parts),
            keys=scaled(part.keys for part in parts),
            scores=scaled(part.scores for part in parts),
            positions=scaled(part.positions for part in parts),
        )

    @classmethod
    def of(cls, prompts: int, samples: int, prompt: int, response: int) -> "Packed":
        """Prompts with as many samples each, all of the same lengths."""
        inner = response - 1
        seen = prompt + inner
        return cls(
            prompts=prompts,
            tokens=prompts * (prompt + samples * inner),
            keys=prompts * (prompt + samples * seen),
            scores=prompts * samples * inner * seen,
            positions=prompts * (1 + samples * inner),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes. kept: when the backward pass begins. temporary: that come on top at the fullest moment."""

    kept: int
    temporary: int


def plan_activations(
    shape: Shape,
    degrees: UpdateDegrees,
    packed: Packed,
    *,
    item_bytes: int,
    recompute: Recompute,
    passes: int,
    portable: bool = True,
    engine: PlannedEngine = TORCH,
    pictured: int = 0,
) -> Activations:
    """Of the fullest pipeline rank. passes: micro-batches of an optimizer step. portable: whether attention
    takes who sees whom in shared prompts as numbers, and computes in float32, as it does on CPU. pictured:
    tokens of a prompt's pictures, which a tower that is trained sees."""
    packed = packed if portable else replace(packed, scores=0)
    rank = _Rank(shape, degrees, packed, item_bytes, portable, engine, pictured)
    found = [
        _of_stage(rank, stage, recompute=recompute, passes=passes)
        for stage in stages_apart(shape, degrees.pipeline, degrees.virtual_pipeline)
    ]
    return max(found, key=lambda one: one.kept + one.temporary)


def _of_stage(rank: "_Rank", stage: int, *, recompute: Recompute, passes: int) -> Activations:
    """The fullest moment is in the head's backward pass, or in that of the last layer, when what the head
    kept is gone."""
    degrees = rank.degrees
    number = degrees.pipeline * degrees.virtual_pipeline
    cuts = stages(rank.shape.layers, number)
    chunks = [cuts[chunk] for chunk in range(stage, number, degrees.pipeline)]
    layers = layers_alike(rank.shape, (layer for chunk in chunks for layer in chunk))
    held = sum(count * rank.layer(layer) for layer, count in layers.items())
    if recompute == "full":
        held = sum(layers.values()) * rank.hidden
    held += rank.tower * sum(rank.sees(chunk) for chunk in chunks)
    # A chunk's input, and its output for the next one, which are on the way as well.
    given = 2 * rank.hidden * len(chunks) if degrees.pipeline > 1 else 0
    held = (held + given) * _held_passes(degrees, stage, passes) // len(chunks)
    held += given + rank.masks
    last = stage == degrees.pipeline - 1
    head = rank.head if last else 0
    again = max(map(rank.layer, layers), default=0) if recompute == "full" else 0
    whole_in_head, whole_in_layer = rank.gathered
    in_layer = again + max(map(rank.layer_temporary, layers), default=0) - head + whole_in_layer
    in_head = (rank.head_temporary if last else 0) + whole_in_head
    return Activations(kept=held + head, temporary=max(in_layer, in_head))


def _held_passes(degrees: UpdateDegrees, stage: int, passes: int) -> int:
    """Micro-batches times chunks whose activations a pipeline rank has at the same time, by 1F1B
    (arXiv:2006.09503) or its interleaved form (arXiv:2104.04473)."""
    chunks, later = degrees.virtual_pipeline, degrees.pipeline - 1 - stage
    ahead = later if chunks == 1 else 2 * later + (chunks - 1) * degrees.pipeline
    return min(ahead + 1, passes * chunks)


class _Rank:
    """Bytes of parts of the model on one rank, of one micro-batch."""

    def __init__(
        self,
        shape: Shape,
        degrees: UpdateDegrees,
        packed: Packed,
        item_bytes: int,
        portable: bool,
        engine: PlannedEngine,
        pictured: int,
    ) -> None:
        self.shape, self.degrees, self._packed, self._item = shape, degrees, packed, item_bytes
        self._engine, self._pictured = engine, pictured
        self._attended = NUMBER_BYTES if portable else item_bytes
        self._outside = -(-packed.tokens // (degrees.tensor * degrees.context))
        self._inside = self._outside * degrees.tensor
        self._ring = degrees.context > 1 and degrees.context_algorithm == "ring"

    @property
    def hidden(self) -> int:
        """Hidden states between layers, [S, H]."""
        return self._outside * self.shape.hidden * self._item

    @property
    def masks(self) -> int:
        """Who sees whom in responses, once for all layers; a ring needs none."""
        return 0 if self._ring else self._packed.scores * NUMBER_BYTES

    def sees(self, layers: range) -> bool:
        """Whether these are given what a vision tower makes: the first of all, and those that DeepStack adds
        to."""
        return layers.start < max(1, self.shape.tower_outputs - 1)

    @property
    def tower(self) -> int:
        """What a vision tower that is trained keeps of a micro-batch's pictures, all of them whatever the
        degrees, and whatever `recompute` says: of each patch what the first matrix takes; of each block two
        norms, queries, keys and values, the first two again when they are turned, the output as heads and as
        features, and the feed-forward; then mergers, and the features. Norms with a bias are computed in the
        weights' type."""
        tower, item = self.shape.vision, self._item
        if tower is None or not self.shape.trains_tower:
            return 0
        norm = (NUMBER_BYTES + 2 * item if tower.gated else 2 * item) * tower.hidden
        inner = (4 if tower.gated else 2) * tower.inner * item
        block = 2 * norm + 7 * tower.hidden * item + inner
        wide = 2 * tower.hidden * item  # a merger's, of each patch that becomes a part of a token
        mergers = norm + wide + tower.added * (tower.hidden * item + wide)
        patch = tower.patch * item + tower.depth * block + mergers
        features = self.shape.tower_outputs * tower.out * item
        return self._packed.prompts * self._pictured * (tower.merged * patch + features)

    def layer(self, index: int) -> int:
        """What a layer keeps without its input: two norms, each with what it gives."""
        sparse = self._sparse(index)
        block = self._experts(sparse) if sparse else self._gated(self.shape.intermediate)
        return 2 * self._norm(self._outside, self.shape.hidden) + self._attention() + block

    def layer_temporary(self, index: int) -> int:
        """Gradients inside of a feed-forward, and those of hidden states. An expert for all tokens runs
        backward first: what it kept is gone when the others do."""
        sparse, tensor = self._sparse(index), self.degrees.tensor
        gathered = self.hidden * (1 + tensor if tensor > 1 else 1)
        if sparse is None:
            inner = self.shape.intermediate // self.degrees.tensor
            return 2 * self._inside * inner * self._item + gathered
        copies, inner = self._copies(sparse)
        routed, shared = 2 * copies * (inner + self.shape.hidden) * self._item, self._shared(sparse)
        return max(routed - shared, shared // 2) + gathered

    @property
    def head(self) -> int:
        """The last norm, hidden states of positions that predict, and logits."""
        norm = self._outside * self.shape.hidden * NUMBER_BYTES
        return norm + self._rows + self._logits(LOGITS_AT_ONCE)

    @property
    def head_temporary(self) -> int:
        """Forward powers of logits and what the norm gave, backward gradients of hidden states, and those of
        logits as narrow as the weights where these are narrow."""
        narrow = self._logits(LOGITS_AT_ONCE) * self._item // NUMBER_BYTES
        backward = 2 * self._rows + (narrow if self._item < NUMBER_BYTES else 0)
        return max(self._logits(LOGITS_AT_ONCE // 8) + self.hidden, backward)

    @property
    def gathered(self) -> tuple[int, int]:
        """With ZeRO 3, weights that are whole while the head runs, and with gradients while a layer runs
        backward: both ends, this layer and the next. With ZeRO 2, two buckets of gradients."""
        degrees = self.degrees
        if degrees.zero < 2 or (degrees.data == 1 and degrees.context == 1):
            return 0, 0
        ends, head = self.shape.embedding() + self.shape.head(), self.shape.head()
        alike = layers_alike(self.shape, range(self.shape.layers))
        layers = [(self._held(self.shape.layer(index)), count) for index, count in alike.items()]
        of_layer = max(items for items, _ in layers)
        if degrees.zero == 2:
            held = sum(count * items for items, count in layers)
            items = held // degrees.pipeline + self._held(ends)
            return 0, min(2 * BUCKET_BYTES, items * NUMBER_BYTES)
        in_head = (self._held(ends) + of_layer) * self._item
        gradients = (self._held(head) + 2 * of_layer) * NUMBER_BYTES
        return in_head, in_head + of_layer * self._item + gradients

    def _held(self, parameters: Parameters) -> int:
        """Items of a rank, before ZeRO."""
        cut = parameters.tensor // self.degrees.tensor + parameters.whole
        experts = self.degrees.expert if self.degrees.expert > 1 else self.degrees.tensor
        return cut + parameters.experts // experts

    @property
    def _rows(self) -> int:
        """Hidden states of positions that predict, of the context rank that has most: in even pieces
        prompts come first."""
        positions = self._packed.positions
        own = -(-positions // self.degrees.context) if self._ring else min(positions, self._inside)
        return own * self.shape.hidden * self._item

    def _logits(self, at_once: int) -> int:
        """Bytes of those that exist at a time."""
        held = -(-self.shape.vocab // self.degrees.tensor)
        positions = self._rows // (self.shape.hidden * self._item)
        return min(positions, max(1, at_once // held)) * held * NUMBER_BYTES

    def _norm(self, tokens: int, width: int) -> int:
        """Normalised in float32, and what a matrix takes; these are one for float32."""
        return tokens * width * (NUMBER_BYTES + self._item)

    def _gated(self, inner: int) -> int:
        """What a feed-forward keeps beside its input."""
        return self._engine.gated * self._inside * inner // self.degrees.tensor * self._item

    def _experts(self, experts: Experts) -> int:
        """Copies of tokens, gate and up, activation and product of each, its output; the router's
        probabilities and places."""
        copies, inner = self._copies(experts)
        rows = copies * (2 * self.shape.hidden + 4 * inner) * self._item
        routes = self._engine.routes * experts.count + 4 * experts.chosen
        routes *= self._outside * NUMBER_BYTES
        places = 4 * copies * INDEX_BYTES
        return rows + routes + places + self._shared(experts)

    def _shared(self, experts: Experts) -> int:
        """Of the expert for all tokens."""
        return self._gated(experts.shared_intermediate)

    def _copies(self, experts: Experts) -> tuple[int, int]:
        """Copies of tokens that the rank's experts compute, and their inner features on it."""
        if self.degrees.expert > 1:
            return self._outside * experts.chosen, experts.intermediate
        return self._inside * experts.chosen, experts.intermediate // self.degrees.tensor

    def _attention(self) -> int:
        """Queries; keys and values of each sequence, a prompt's again for each response; the output as
        heads and as features, with a number a head; what norms inside keep."""
        shape, latent = self.shape, self.shape.latent
        heads = shape.heads // self.degrees.tensor
        keys, key, value = (
            max(1, shape.kv_heads // self.degrees.tensor),
            shape.head_dim,
            shape.head_dim,
        )
        normed = self._inside * (heads + keys) * key * NUMBER_BYTES if shape.qk_norm else 0
        if latent:
            keys, key, value = heads, latent.nope_dim + latent.rope_dim, latent.value_dim
            normed = self._norm(self._outside, latent.kv_rank + (latent.query_rank or 0))
        own = self._inside * heads * (2 * key + value)  # attention is as wide as keys
        if self._ring:
            rows = own + self._inside * 2 * keys * key
        else:
            rows = own + self._packed.keys * max(1, keys // self.degrees.context) * 2 * key
        return rows * self._attended + self._inside * heads * NUMBER_BYTES + normed

    def _sparse(self, layer: int) -> Experts | None:
        experts = self.shape.experts
        return experts if experts and experts.in_layer(layer) else None
