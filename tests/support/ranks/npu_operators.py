"""torch_npu's operators without an NPU: its published schemas, computed on CPU in plain torch.

Each operator takes what its documentation allows and asserts the rest, such as the layouts of
rotary embeddings. What torch_npu differentiates itself (its library has an autograd node for it) is
differentiable here too; the others have no gradient at all.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SCHEMAS = Path(__file__).parents[2] / "fixtures" / "torch_npu"
VERSIONS = sorted(path.stem for path in SCHEMAS.glob("*.txt"))
UNSEEN = torch.ones(2048, 2048, dtype=torch.bool).triu(1)  # what sparse modes 2 and 3 take


@contextmanager
def npu_operators(version: str, *, rename: tuple[str, str] | None = None) -> Iterator[None]:
    """`torch.ops.npu` as torch_npu of that version registers it.

    rename: an argument of the schemas and what it is called instead.
    """
    lines = (SCHEMAS / f"{version}.txt").read_text().splitlines()
    library = torch.library.Library("npu", "DEF")  # type: ignore[no-untyped-call]
    for schema in (line for line in lines if line.startswith("npu_")):
        name = schema.partition("(")[0]
        node = name.title().replace("_", "") + "Backward0"
        if rename is not None:
            schema = re.sub(rf"\b{rename[0]}\b(?==)", rename[1], schema)
        library.define(schema)  # type: ignore[no-untyped-call]
        key = "CompositeImplicitAutograd" if node in lines else "CPU"
        library.impl(name, OPERATORS[name], key)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, pse: Any = None,
    padding_mask: Any = None, atten_mask: Tensor | None = None, scale: float = 1.0, keep_prob: float = 1.0,
    pre_tockens: int = 2**31 - 1, next_tockens: int = 2**31 - 1, inner_precise: int = 0, prefix: Any = None,
    actual_seq_qlen: Any = None, actual_seq_kvlen: Any = None, sparse_mode: int = 0,
    gen_mask_parallel: bool = True, sync: bool = False, softmax_layout: str = "", *_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Layout TND with the 2048 x 2048 mask of sparse mode 3, or without a mask."""
    lengths = _lengths(query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen)
    kept = query.requires_grad and torch.is_grad_enabled()
    assert sparse_mode == (0 if atten_mask is None else 3)
    if atten_mask is not None:
        assert atten_mask.equal(UNSEEN)
        assert not (kept and atten_mask.is_inference()), "autograd cannot keep it for the gradient"
    outputs, largest, sums = [], [], []
    for rows, scores, values in _scores(query, key, value, lengths, scale, sparse_mode):
        most = scores.amax(-1, keepdim=True)
        powers = (scores - most).exp()
        sums.append(powers.sum(-1).T)
        largest.append(most[..., 0].T)
        mixed = torch.einsum("aqk,kad->qad", powers, values) / sums[-1][..., None]
        outputs.append(mixed.to(query[rows].dtype))
    # Any other layout than TND has a sequence's heads one behind the other.
    assert softmax_layout in ("", "TND")
    statistics = [
        torch.cat([x if softmax_layout else x.T.reshape(x.shape) for x in parts])
        for parts in (largest, sums)
    ]
    repeated = (x[..., None].expand(-1, -1, 8).contiguous() for x in statistics)
    return torch.cat(outputs), *repeated, query.new_empty(0), 0, 0, 0


def fusion_attention_grad(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, *,
    softmax_max: Tensor, softmax_sum: Tensor, attention_in: Tensor, atten_mask: Any = None,
    scale_value: float = 1.0, actual_seq_qlen: Any = None, actual_seq_kvlen: Any = None,
    sparse_mode: int = 0, softmax_layout: str = "", **others: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Of the same layouts, from the statistics that it is given, in their layout TND."""
    lengths = _lengths(query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen)
    assert softmax_layout == "TND" and dy.dtype == attention_in.dtype == query.dtype
    assert dy.shape == attention_in.shape == query.shape
    assert sparse_mode == 3 and atten_mask.equal(UNSEEN) if sparse_mode else atten_mask is None
    for statistics in (softmax_max, softmax_sum):
        assert statistics.shape == (*query.shape[:2], 8) and statistics.is_contiguous()
        assert statistics.dtype == torch.float32 and bool((statistics == statistics[..., :1]).all())
    gradients = [torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value)]
    first_key, repeats = 0, head_num // key.shape[1]
    for rows, scores, values in _scores(query, key, value, lengths, scale_value, sparse_mode):
        keys = slice(first_key, first_key + scores.shape[2])
        first_key = keys.stop
        up = dy[rows].float()
        most, total = (x[rows, :, :1].transpose(0, 1) for x in (softmax_max, softmax_sum))
        weights = (scores - most).exp() / total
        inner = (up * attention_in[rows].float()).sum(-1).T[..., None]
        of_scores = weights * (torch.einsum("qad,kad->aqk", up, values) - inner) * scale_value
        wide_key = key[keys].float().repeat_interleave(repeats, 1)
        gradients[0][rows] = torch.einsum("aqk,kad->qad", of_scores, wide_key)
        for into, weighted, other in (
            (gradients[1], of_scores, query[rows].float()),
            (gradients[2], weights, up),
        ):
            of_heads = torch.einsum("aqk,qad->kad", weighted, other)
            into[keys] = of_heads.unflatten(1, (-1, repeats)).sum(2)  # type: ignore[no-untyped-call]
    return *(x.to(query.dtype) for x in gradients), query.new_empty(0), query.new_empty(0)


def _lengths(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    query_ends: Any,
    key_ends: Any,
) -> list[tuple[int, int]]:
    """Of each sequence's queries and keys."""
    assert query.dtype == key.dtype == value.dtype and query.shape[-1] <= 768
    assert key.shape == value.shape and head_num == query.shape[-2] and query.numel()
    assert input_layout == "TND" and len(query_ends) == len(key_ends) <= 1024
    assert (query_ends[-1], key_ends[-1]) == (len(query), len(key))
    ends = zip(pairwise([0, *query_ends]), pairwise([0, *key_ends]), strict=True)
    return [(b - a, d - c) for (a, b), (c, d) in ends]


def _scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[tuple[int, int]],
    scale: float,
    sparse_mode: int,
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows of each sequence's queries, its scores [A, Q, K] and its values of all heads [K, A, D]."""
    first_query = first_key = 0
    for queries, keys in lengths:
        rows = slice(first_query, first_query + queries)
        if not queries:
            first_key += keys
            continue
        heads = [
            x[first_key : first_key + keys]
            .float()
            .repeat_interleave(query.shape[1] // x.shape[1], 1)
            for x in (key, value)
        ]
        scores = torch.einsum("qad,kad->aqk", query[rows].float(), heads[0]) * scale
        if sparse_mode == 3:
            seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            scores = scores.masked_fill(~seen, float("-inf"))
        yield rows, scores, heads[1]
        first_query, first_key = rows.stop, first_key + keys


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Normalises over as many dims as gamma has."""
    assert gamma.dtype == x.dtype
    dims = tuple(range(-gamma.dim(), 0))
    scale = torch.rsqrt(x.float().square().mean(dims, keepdim=True) + epsilon)
    return (x.float() * scale * gamma.float()).to(x.dtype), scale


def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """In float32, rounded once."""
    gate, up = x.float().chunk(2, dim=dim)
    return (gate * gate.sigmoid() * up).to(x.dtype)


def rotary_mul(
    x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Any = None
) -> Tensor:
    """Layout BSND with one angle for all of B and N."""
    assert x.dim() == 4 and r1.shape == r2.shape == (1, x.shape[1], 1, x.shape[3])
    assert x.shape[3] < 896 and x.shape[2] * x.shape[0] < 1000 and rotate is None and x.numel()
    if rotary_mode == "half":
        first, second = x.chunk(2, -1)
        turned = torch.cat((-second, first), dim=-1)
    else:
        assert rotary_mode == "interleave"
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return r1 * x + r2 * turned


def grouped_matmul(
    x: list[Tensor], weight: list[Tensor], *, group_list: Tensor, split_item: int = 0,
    group_type: int | None = None, group_list_type: int = 0, **others: Any,
) -> list[Tensor]:  # fmt: skip
    """One x and one weight, grouped by rows or by the dim that is summed over."""
    assert len(x) == len(weight) == 1 and split_item in (2, 3) and group_list_type == 0
    assert group_list.dtype == torch.int64 and x[0].numel() and weight[0].numel()
    rows = [slice(*ends) for ends in pairwise([0, *group_list.tolist()])]
    if group_type == 0:
        assert (x[0].dim(), weight[0].dim()) == (2, 3)
        return [torch.cat([x[0][row] @ weight[0][e] for e, row in enumerate(rows)])]
    assert group_type == 2 and x[0].t().is_contiguous() and weight[0].is_contiguous()
    return [torch.stack([x[0][:, row] @ weight[0][row] for row in rows])]


def moe_token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: Any = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Every copy, by expert."""
    assert indices.dtype == torch.int64 and num_out_tokens is None and not padded_mode
    order = torch.argsort(indices.flatten(), stable=True)
    return tokens[order // indices.shape[1]], torch.argsort(order).int()


def moe_token_unpermute(
    permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor, padded_mode: bool = False,
    restore_shape: Any = None,
) -> Tensor:  # fmt: skip
    """The sum over a token's copies, in the tokens' dtype."""
    assert probs.dtype == permuted_tokens.dtype and sorted_indices.dtype == torch.int32
    assert permuted_tokens.numel() and not padded_mode and restore_shape is None
    copies = permuted_tokens[sorted_indices.long()].reshape(*probs.shape, -1)
    return (copies * probs[..., None]).sum(1)


OPERATORS = {
    "npu_fusion_attention": fusion_attention,
    "npu_fusion_attention_grad": fusion_attention_grad,
    "npu_rms_norm": rms_norm,
    "npu_swiglu": swiglu,
    "npu_rotary_mul": rotary_mul,
    "npu_grouped_matmul": grouped_matmul,
    "npu_moe_token_permute": moe_token_permute,
    "npu_moe_token_unpermute": moe_token_unpermute,
}
