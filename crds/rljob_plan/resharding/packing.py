"""Where a device's slices lie in the parameters of engines that keep several tensors in one.

Called by whoever hands an engine's parameters to a reshard. Plans move tensors by their Hugging Face names; a
box of a slice is rows of it, and so of the parameter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rljob_api.model.architecture import Shape
from rljob_plan.resharding.boxes import Piece

Packing = Literal["vllm", "megatron"]
QKV = "self_attention.linear_qkv"

PARAMETERS: dict[Packing, dict[str, str]] = {
    "vllm": {
        "self_attn.q_proj": "self_attn.qkv_proj",
        "self_attn.k_proj": "self_attn.qkv_proj",
        "self_attn.v_proj": "self_attn.qkv_proj",
        "mlp.gate_proj": "mlp.gate_up_proj",
        "mlp.up_proj": "mlp.gate_up_proj",
        "mlp.shared_experts.gate_proj": "mlp.shared_experts.gate_up_proj",
        "mlp.shared_experts.up_proj": "mlp.shared_experts.gate_up_proj",
        "mlp.experts.gate_proj": "mlp.experts.w13",
        "mlp.experts.up_proj": "mlp.experts.w13",
        "mlp.experts.down_proj": "mlp.experts.w2",
    },
    "megatron": {
        "self_attn.q_proj": QKV,
        "self_attn.k_proj": QKV,
        "self_attn.v_proj": QKV,
        "mlp.gate_proj": "mlp.linear_fc1",
        "mlp.up_proj": "mlp.linear_fc1",
    },
}
"""Tensors of a layer and the parameter that keeps them, in the order of the tensors; without `weight` or
`bias`, and without the number of an expert."""


class Run(NamedTuple):
    """Rows [start, stop) of a slice; in the parameter, from row `first` on."""

    start: int
    stop: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Where a slice lies. parameter: within its layer. kind: weight or bias. expert: place in the device's
    stack of experts; None for what is not of an expert."""

    parameter: str
    kind: str
    runs: tuple[Run, ...]
    expert: int | None = None


def packed_slices(shape: Shape, held: Iterable[Piece], packing: Packing) -> dict[str, Packed]:
    """The slices that share a parameter, by name. held: all that a device holds, in the model's order.

    vLLM has the device's queries, keys and values one after the other; Megatron Core a key head's query
    heads, the key head and its value head, key head by key head. Both have gate before up. Latent
    attention's matrices are parameters of their own.
    """
    sharing: dict[tuple[int | None, str, int | None, str], list[Piece]] = {}
    for piece in held:
        stem, kind = _stem(piece)
        parameter = PARAMETERS[packing].get(stem)
        if parameter is not None and not (shape.latent and "self_attn" in stem):
            key = (piece.tensor.layer, parameter, piece.tensor.expert, kind)
            sharing.setdefault(key, []).append(piece)
    first = min((expert for _, _, expert, _ in sharing if expert is not None), default=0)
    return {
        piece.tensor.name: Packed(
            parameter=parameter,
            kind=kind,
            runs=runs,
            expert=None if expert is None else expert - first,
        )
        for (_, parameter, expert, kind), pieces in sharing.items()
        for piece, runs in zip(pieces, _runs(shape, parameter, pieces), strict=True)
    }


def _stem(piece: Piece) -> tuple[str, str]:
    """A tensor's name within its layer, or expert, and weight or bias."""
    name = piece.tensor.name.split(".")
    if piece.tensor.expert is not None:
        del name[5]
    return ".".join(name[3:-1]), name[-1]


def _runs(shape: Shape, parameter: str, pieces: Sequence[Piece]) -> Iterator[tuple[Run, ...]]:
    """Of each slice."""
    heads = [piece.box.size[0] // shape.head_dim for piece in pieces]
    groups = heads[1] if parameter == QKV else 1
    rows = [piece.box.size[0] // groups for piece in pieces]
    before = 0
    for own in rows:
        yield tuple(
            Run(group * own, (group + 1) * own, group * sum(rows) + before)
            for group in range(groups)
        )
        before += own
