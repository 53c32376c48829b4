"""Distribute a decoder over the ranks of the update layout: the one module that applies the techniques, in
order.

Called by the worker of each update rank once its process groups exist.
"""

from functools import partial
from pathlib import Path

import torch

from rljob_api.model.architecture import Shape, read_shape
from rljob_api.spec.lora import Lora
from rljob_runtime.models.blocks.attention import Attention
from rljob_runtime.models.blocks.experts import StackedExperts
from rljob_runtime.models.blocks.gated_mlp import GatedMlp
from rljob_runtime.models.blocks.latent_attention import LatentAttention
from rljob_runtime.models.config import read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.loading import read_scorer
from rljob_runtime.models.lora import add_adapters, initial_adapter
from rljob_runtime.parallel.decoder.context_attention import RingAttention, UlyssesAttention
from rljob_runtime.parallel.decoder.expert_layers import experts_by_features, experts_by_number
from rljob_runtime.parallel.decoder.parameters import (
    HOST,
    cut_parameters,
    fill_adapters,
    keep_stages,
    load_slices,
    local_slices,
    on_meta,
)
from rljob_runtime.parallel.decoder.pipeline_passes import score
from rljob_runtime.parallel.decoder.tensor_linears import SharedLinears
from rljob_runtime.parallel.decoder.tokens import is_ring
from rljob_runtime.parallel.decoder.vocabulary_ends import SharedEnds
from rljob_runtime.parallel.fully_sharded import shard_weights
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose


def load_parallel(
    path: Path,
    groups: ProcessGroups,
    *,
    dtype: torch.dtype,
    scores: bool = False,
    lora: Lora | None = None,
    seed: int = 0,
    device: torch.device = HOST,
) -> Decoder:
    """Return this rank's shard of a Hugging Face directory's model. Memory: the shard and, while it loads,
    one slice.

    scores: as in `loading.load_scorer`. lora: with new adapters, drawn with this seed. Where there is a
    pipeline, `pipeline_passes.run_micro_batches` trains it; its `logprobs` scores alone. Raises ConfigError
    for degrees that the model cannot have, UnsupportedArchitecture for a model that the decoder does not
    compute, and as `load_weights`.
    """
    entries = read_config(path)
    weights_dtype = torch.float32 if shares_weights(groups) else dtype
    decoder = on_meta(read_scorer(path) if scores else read_architecture(entries), weights_dtype)
    shape = read_shape(entries, name=f"{path}/config.json")
    assert shape is not None, f"the contract lacks {decoder.architecture.name}"
    shape = shape.scorer() if scores else shape
    if lora is not None:
        add_adapters(decoder, lora)
    parallelize(decoder, shape, groups, lora, device=device)
    share_weights(decoder, groups, dtype=dtype)
    local = local_slices(shape, groups.grid, groups.rank, lora)
    load_slices(decoder, path, shape, local)
    fill_adapters(decoder, local, lambda tensor: initial_adapter(tensor.name, tensor.shape, seed))
    return decoder


def parallelize(
    decoder: Decoder,
    shape: Shape,
    groups: ProcessGroups,
    lora: Lora | None = None,
    *,
    device: torch.device = HOST,
) -> None:
    """Turn a full decoder into this rank's shard of it, uninitialised on `device`.

    decoder: of `on_meta`. shape: of the same model, and one that the degrees fit
    (`rljob_api.check.shape_rules`). lora: of its adapters.
    """
    keep_stages(decoder, groups.grid.partition(shape, groups.rank))
    local = local_slices(shape, groups.grid, groups.rank, lora)
    cut_parameters(decoder, local, device=device)
    share_matrices(decoder, groups)
    share_experts(decoder, groups)
    share_attention(decoder, groups)
    share_ends(decoder, groups)
    share_layers(decoder, groups)


def share_layers(decoder: Decoder, groups: ProcessGroups) -> None:
    """Make `logprobs` pass through all stages of a pipeline, without gradient."""
    if groups[Purpose.PIPELINE] is not None:
        decoder.logprobs = partial(score, decoder, groups)  # type: ignore[method-assign]


def share_matrices(decoder: Decoder, groups: ProcessGroups) -> None:
    """Make matrices tensor parallel, with sequence parallel tokens between them."""
    for block in decoder.modules():
        if isinstance(block, Attention | LatentAttention | GatedMlp):
            block.linears = SharedLinears(groups[Purpose.TENSOR])


def share_experts(decoder: Decoder, groups: ProcessGroups) -> None:
    """Distribute experts by their number; where the expert degree is 1, by their features like other
    matrices."""
    experts = decoder.architecture.experts
    if experts is None:
        return
    if groups.grid.degrees.expert > 1:
        run = experts_by_number(experts.count, groups[Purpose.EXPERT])
    else:
        run = experts_by_features(groups[Purpose.TENSOR])
    for block in decoder.modules():
        if isinstance(block, StackedExperts):
            block.run = run


def share_attention(decoder: Decoder, groups: ProcessGroups) -> None:
    """Make attention context parallel, in a ring or by Ulysses."""
    attention = RingAttention if is_ring(groups.grid.degrees) else UlyssesAttention
    for block in decoder.modules():
        if isinstance(block, Attention | LatentAttention):
            block.attend = attention(groups[Purpose.CONTEXT])


def shares_weights(groups: ProcessGroups) -> bool:
    """Return whether ranks shard the rows of weights. The rows are then main weights, in float32 whatever the
    dtype of computation."""
    return groups.grid.degrees.zero == 3 and groups[Purpose.CUT_GRADIENTS] is not None


def share_weights(decoder: Decoder, groups: ProcessGroups, *, dtype: torch.dtype) -> None:
    """Apply ZeRO 3: the ranks that repeat a slice for other tokens keep rows of it each, layer by layer.
    dtype: of gathered weights, and of computation."""
    group = groups[Purpose.CUT_GRADIENTS]
    if shares_weights(groups) and group is not None:
        shard_weights(decoder, decoder.model.layers, group, forward="compute", dtype=dtype)


def share_ends(decoder: Decoder, groups: ProcessGroups) -> None:
    """Make the embedding and log-probs vocabulary parallel, and split tokens into the shares that blocks now
    take."""
    decoder.ends = SharedEnds(decoder.architecture.vocab_size, groups)
