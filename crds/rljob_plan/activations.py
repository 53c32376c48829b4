"""Compute the bytes that an update rank holds of a micro-batch between its forward and its backward pass.

Called by `shards`. The figures count the tensors that an update engine retains, and the largest temporary
ones on top. `tests/parallel/decoder/test_planned_memory.py` measures both for the engine `torch`,
`tests/update/test_megatron_memory.py` for `megatron`, and `tests/models/test_planned_tower.py` for a trained
vision tower. Left out is what grows with neither tokens times features nor the vocabulary (indices, angles,
norms' scales). Tokens are assumed to be spread evenly over experts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rljob_api.model.architecture import ExpertSizes, Parameters, Shape
from rljob_api.model.layout import layers_alike, stages, stages_apart
from rljob_api.spec.engines import Recompute
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedBatch
from rljob_plan.engines import TORCH, PlannedEngine

NUMBER_BYTES = 4
"""Bytes of a number that is computed in float32 whatever the weights' type."""
INDEX_BYTES = 8
LOGITS_CHUNK = 1 << 25
"""Logits that the engine holds at a time; it holds an eighth of them twice."""
BUCKET_BYTES = 32 * 2**20
"""Bytes of gradients that are sent together, if ranks keep shards of the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSizes:
    """Sizes of a packed micro-batch. prompts: each once. tokens: each prompt once, and all but the last token
    of every response. keys: keys that its sequences attend to, a prompt's once for each response. scores:
    attention scores between responses' tokens and those keys. positions: tokens that predict a response's
    token."""

    prompts: int
    tokens: int
    keys: int
    scores: int
    positions: int

    @classmethod
    def longest(cls, batch: ResolvedBatch) -> "PackedSizes":
        """Return the sizes at the longest lengths. batch: with `microBatchSize` filled in."""
        samples = batch.samples_per_prompt
        lengths = (batch.max_prompt_length, batch.max_response_length)
        if batch.micro_batch_tokens is None:
            return cls.of(batch.micro_batch_size or 1, samples, *lengths)
        return cls.filling(batch.micro_batch_tokens, samples, *lengths)

    @classmethod
    def filling(cls, limit: int, samples: int, prompt: int, response: int) -> "PackedSizes":
        """Return the sizes of a micro-batch filled up to `limit` tokens. Complete groups and a fraction of
        one more are counted and scaled to the limit, since shorter samples fill the remainder."""
        groups, unfilled = divmod(limit, prompt + samples * response)
        more = min(samples, max(0, unfilled - prompt) // response)
        packs = [cls.of(groups, samples, prompt, response)]
        if more:
            packs.append(cls.of(1, more, prompt, response))
        filled = limit - unfilled + (prompt + more * response if more else 0)

        def scaled(counts: Iterable[int]) -> int:
            """Scale a sum of counts up to the limit of tokens."""
            return -(-sum(counts) * limit // filled)

        return cls(
            prompts=scaled(pack.prompts for pack in packs),
            tokens=scaled(pack.tokens for pack in packs),
            keys=scaled(pack.keys for pack in packs),
            scores=scaled(pack.scores for pack in packs),
            positions=scaled(pack.positions for pack in packs),
        )

    @classmethod
    def of(cls, prompts: int, samples: int, prompt: int, response: int) -> "PackedSizes":
        """Return the sizes for prompts with the same number of samples each, all of the same lengths."""
        inner = response - 1
        context = prompt + inner
        return cls(
            prompts=prompts,
            tokens=prompts * (prompt + samples * inner),
            keys=prompts * (prompt + samples * context),
            scores=prompts * samples * inner * context,
            positions=prompts * (1 + samples * inner),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of activations. retained: at the start of the backward pass. temporary: additional bytes at the
    fullest moment."""

    retained: int
    temporary: int


def plan_activations(
    shape: Shape,
    degrees: UpdateDegrees,
    packed: PackedSizes,
    *,
    item_bytes: int,
    recompute: Recompute,
    passes: int,
    portable: bool = True,
    engine: PlannedEngine = TORCH,
    pictured: int = 0,
) -> Activations:
    """Return the activations of the fullest pipeline rank. passes: micro-batches of an optimizer step.
    portable: attention takes its mask over shared prompts as numbers and computes in float32, as on CPU.
    pictured: tokens of a prompt's pictures, which a trained tower processes."""
    packed = packed if portable else replace(packed, scores=0)
    rank = _Rank(shape, degrees, packed, item_bytes, portable, engine, pictured)
    by_stage = [
        _of_stage(rank, stage, recompute=recompute, passes=passes)
        for stage in stages_apart(shape, degrees.pipeline, degrees.virtual_pipeline)
    ]
    return max(by_stage, key=lambda one: one.retained + one.temporary)


def _of_stage(rank: "_Rank", stage: int, *, recompute: Recompute, passes: int) -> Activations:
    """Return the activations of one stage. The fullest moment is in the head's backward pass, or in that of
    the last layer, after the head has freed its activations."""
    degrees = rank.degrees
    number = degrees.pipeline * degrees.virtual_pipeline
    cuts = stages(rank.shape.layers, number)
    chunks = [cuts[chunk] for chunk in range(stage, number, degrees.pipeline)]
    layers = layers_alike(rank.shape, (layer for chunk in chunks for layer in chunk))
    layer_bytes = sum(count * rank.layer(layer) for layer, count in layers.items())
    if recompute == "full":
        layer_bytes = sum(layers.values()) * rank.hidden
    layer_bytes += rank.tower * sum(rank.reads_tower(chunk) for chunk in chunks)
    # A chunk's input, and its output for the next chunk, which is in transit as well.
    boundary_bytes = 2 * rank.hidden * len(chunks) if degrees.pipeline > 1 else 0
    layer_bytes = (
        (layer_bytes + boundary_bytes) * _passes_in_flight(degrees, stage, passes) // len(chunks)
    )
    layer_bytes += boundary_bytes + rank.masks
    last = stage == degrees.pipeline - 1
    head = rank.head if last else 0
    recomputed = max(map(rank.layer, layers), default=0) if recompute == "full" else 0
    gathered_in_head, gathered_in_layer = rank.gathered
    in_layer = (
        recomputed + max(map(rank.layer_temporary, layers), default=0) - head + gathered_in_layer
    )
    in_head = (rank.head_temporary if last else 0) + gathered_in_head
    return Activations(retained=layer_bytes + head, temporary=max(in_layer, in_head))


def _passes_in_flight(degrees: UpdateDegrees, stage: int, passes: int) -> int:
    """Return the micro-batches times chunks whose activations a pipeline rank holds at the same time, by 1F1B
    (arXiv:2006.09503) or its interleaved form (arXiv:2104.04473)."""
    chunks, later = degrees.virtual_pipeline, degrees.pipeline - 1 - stage
    ahead = later if chunks == 1 else 2 * later + (chunks - 1) * degrees.pipeline
    return min(ahead + 1, passes * chunks)


class _Rank:
    """Bytes of each module of the model on one rank, for one micro-batch."""

    def __init__(
        self,
        shape: Shape,
        degrees: UpdateDegrees,
        packed: PackedSizes,
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
        """Return the bytes of hidden states between layers, [S, H]."""
        return self._outside * self.shape.hidden * self._item

    @property
    def masks(self) -> int:
        """Return the bytes of attention masks over responses, stored once for all layers; a ring needs
        none."""
        return 0 if self._ring else self._packed.scores * NUMBER_BYTES

    def reads_tower(self, layers: range) -> bool:
        """Return whether these layers read outputs of the vision tower: the first layer of all, and those
        that DeepStack adds to."""
        return layers.start < max(1, self.shape.tower_outputs - 1)

    @property
    def tower(self) -> int:
        """Return what a trained vision tower retains of a micro-batch's pictures, whatever the degrees and
        `recompute`.

        For each patch it retains the input of the first matrix. For each block it retains two norms, queries,
        keys and values, queries and keys again after rotation, the output as heads and as features, and the
        feed-forward. The mergers and the features follow. Norms with a bias are computed in the weights'
        type.
        """
        tower, item = self.shape.vision, self._item
        if tower is None or not self.shape.trains_tower:
            return 0
        norm = (NUMBER_BYTES + 2 * item if tower.gated else 2 * item) * tower.hidden
        inner = (4 if tower.gated else 2) * tower.inner * item
        block = 2 * norm + 7 * tower.hidden * item + inner
        wide = 2 * tower.hidden * item  # a merger's, for each patch that is merged into a token
        mergers = norm + wide + tower.added * (tower.hidden * item + wide)
        patch = tower.patch * item + tower.depth * block + mergers
        features = self.shape.tower_outputs * tower.out * item
        return self._packed.prompts * self._pictured * (tower.merged * patch + features)

    def layer(self, index: int) -> int:
        """Return the bytes that a layer retains besides its input: two norms with their outputs, attention
        and feed-forward."""
        sparse = self._sparse(index)
        block = self._experts(sparse) if sparse else self._gated(self.shape.intermediate)
        return 2 * self._norm(self._outside, self.shape.hidden) + self._attention() + block

    def layer_temporary(self, index: int) -> int:
        """Return the bytes of gradients inside a feed-forward and of hidden states. A shared expert runs
        backward first, so its activations are freed before those of the routed experts."""
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
        """Return the bytes of the last norm, hidden states of positions that predict, and logits."""
        norm = self._outside * self.shape.hidden * NUMBER_BYTES
        return norm + self._rows + self._logits(LOGITS_CHUNK)

    @property
    def head_temporary(self) -> int:
        """Return the larger of two peaks. The forward pass holds exponentials of logits and the norm's
        output. The backward pass holds gradients of hidden states, and of logits in the weights' type if that
        is narrow."""
        narrow = self._logits(LOGITS_CHUNK) * self._item // NUMBER_BYTES
        backward = 2 * self._rows + (narrow if self._item < NUMBER_BYTES else 0)
        return max(self._logits(LOGITS_CHUNK // 8) + self.hidden, backward)

    @property
    def gathered(self) -> tuple[int, int]:
        """Return the gathered bytes while the head runs, and while a layer runs backward.

        ZeRO 3 gathers both ends of the model, this layer and the next, and with gradients in the backward
        pass. ZeRO 2 holds two buckets of gradients.
        """
        degrees = self.degrees
        if degrees.zero < 2 or (degrees.data == 1 and degrees.context == 1):
            return 0, 0
        ends, head = self.shape.embedding() + self.shape.head(), self.shape.head()
        alike = layers_alike(self.shape, range(self.shape.layers))
        layers = [
            (self._local_items(self.shape.layer(index)), count) for index, count in alike.items()
        ]
        of_layer = max(items for items, _ in layers)
        if degrees.zero == 2:
            layer_items = sum(count * items for items, count in layers)
            items = layer_items // degrees.pipeline + self._local_items(ends)
            return 0, min(2 * BUCKET_BYTES, items * NUMBER_BYTES)
        in_head = (self._local_items(ends) + of_layer) * self._item
        gradients = (self._local_items(head) + 2 * of_layer) * NUMBER_BYTES
        return in_head, in_head + of_layer * self._item + gradients

    def _local_items(self, parameters: Parameters) -> int:
        """Return the items of these parameters on a rank, before ZeRO."""
        cut = parameters.tensor // self.degrees.tensor + parameters.replicated
        experts = self.degrees.expert if self.degrees.expert > 1 else self.degrees.tensor
        return cut + parameters.experts // experts

    @property
    def _rows(self) -> int:
        """Return the bytes of hidden states of positions that predict, on the context rank that has most of
        them. In even shards, prompts come first."""
        positions = self._packed.positions
        local_positions = (
            -(-positions // self.degrees.context) if self._ring else min(positions, self._inside)
        )
        return local_positions * self.shape.hidden * self._item

    def _logits(self, chunk: int) -> int:
        """Return the bytes of the logits that exist at a time."""
        local_vocabulary = -(-self.shape.vocab // self.degrees.tensor)
        positions = self._rows // (self.shape.hidden * self._item)
        return min(positions, max(1, chunk // local_vocabulary)) * local_vocabulary * NUMBER_BYTES

    def _norm(self, tokens: int, width: int) -> int:
        """Return the bytes of a norm: its float32 output and the input of the next matrix; one tensor for
        float32."""
        return tokens * width * (NUMBER_BYTES + self._item)

    def _gated(self, inner: int) -> int:
        """Return the bytes that a feed-forward retains besides its input."""
        return self._engine.gated * self._inside * inner // self.degrees.tensor * self._item

    def _experts(self, experts: ExpertSizes) -> int:
        """Return the bytes that experts retain: copies of tokens, their inner features and outputs, and the
        router's probabilities and indices."""
        copies, inner = self._copies(experts)
        rows = copies * (2 * self.shape.hidden + 4 * inner) * self._item
        routes = self._engine.routes * experts.count + 4 * experts.chosen
        routes *= self._outside * NUMBER_BYTES
        index_bytes = 4 * copies * INDEX_BYTES
        return rows + routes + index_bytes + self._shared(experts)

    def _shared(self, experts: ExpertSizes) -> int:
        """Return the bytes that the shared expert retains."""
        return self._gated(experts.shared_intermediate)

    def _copies(self, experts: ExpertSizes) -> tuple[int, int]:
        """Return the copies of tokens that the rank's experts compute, and their inner features on it."""
        if self.degrees.expert > 1:
            return self._outside * experts.chosen, experts.intermediate
        return self._inside * experts.chosen, experts.intermediate // self.degrees.tensor

    def _attention(self) -> int:
        """Return the bytes that attention retains: queries; keys and values of each sequence, a prompt's
        repeated for each response; the output as heads and as features, with one number per head; inner
        norms."""
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
        query_items = self._inside * heads * (2 * key + value)  # attention is as wide as keys
        if self._ring:
            rows = query_items + self._inside * 2 * keys * key
        else:
            rows = query_items + self._packed.keys * max(1, keys // self.degrees.context) * 2 * key
        return rows * self._attended + self._inside * heads * NUMBER_BYTES + normed

    def _sparse(self, layer: int) -> ExpertSizes | None:
        experts = self.shape.experts
        return experts if experts and experts.in_layer(layer) else None
