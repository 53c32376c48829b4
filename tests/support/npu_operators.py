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

import torch
from torch import Tensor

from rljob_runtime.kernels.flash_attention import Sequences, flash_attention_reference

SCHEMAS = Path(__file__).parents[1] / "fixtures" / "torch_npu"
VERSIONS = sorted(path.stem for path in SCHEMAS.glob("*.txt"))
UNSEEN = torch.ones(2048, 2048, dtype=torch.bool).triu(1)  # what sparse modes 2 and 3 take


@contextmanager
def npu_operators(version: str, *, rename: tuple[str, str] | None = None) -> Iterator[None]:
    """`torch.ops.npu` as torch_npu of that version registers it.

    rename: an argument of the schemas and what it is called instead.
    """
    lines = (SCHEMAS / f"{version}.txt").read_text().splitlines()
    library = torch.library.Library("npu", "DEF")
    for schema in (line for line in lines if line.startswith("npu_")):
        name = schema.partition("(")[0]
        node = name.title().replace("_", "") + "Backward0"
        if rename is not None:
            schema = re.sub(rf"\b{rename[0]}\b(?==)", rename[1], schema)
        library.define(schema)
        key = "CompositeImplicitAutograd" if node in lines else "CPU"
        library.impl(name, OPERATORS[name], key)
    try:
        yield
    finally:
        library._destroy()


def fusion_attention(
    query, key, value, head_num, input_layout, pse=None, padding_mask=None, atten_mask=None,
    scale=1.0, keep_prob=1.0, pre_tockens=2**31 - 1, next_tockens=2**31 - 1, inner_precise=0,
    prefix=None, actual_seq_qlen=None, actual_seq_kvlen=None, sparse_mode=0, *_,
):  # fmt: skip
    """Layout TND with the 2048 x 2048 mask of sparse mode 3."""
    assert query.dtype == key.dtype == value.dtype and query.shape[-1] <= 768
    assert key.shape == value.shape and head_num == query.shape[-2] and query.numel()
    assert sparse_mode == 3 and atten_mask.equal(UNSEEN)
    kept = query.requires_grad and torch.is_grad_enabled()
    assert not (kept and atten_mask.is_inference()), "autograd cannot keep it for the gradient"
    assert input_layout == "TND" and len(actual_seq_qlen) == len(actual_seq_kvlen) <= 1024
    assert (actual_seq_qlen[-1], actual_seq_kvlen[-1]) == (len(query), len(key))
    ends = zip(pairwise([0, *actual_seq_qlen]), pairwise([0, *actual_seq_kvlen]), strict=True)
    lengths = [(b - a, d - c) for (a, b), (c, d) in ends]
    mixed = flash_attention_reference(query, key, value, Sequences.apart(lengths), scale=scale)
    statistics = query.new_empty(0, dtype=torch.float32)
    return mixed, statistics, statistics, query.new_empty(0), 0, 0, 0


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


def rotary_mul(x, r1, r2, rotary_mode="half", rotate=None):
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
    x, weight, *, group_list, split_item=0, group_type=None, group_list_type=0, **others
):
    """One x and one weight, grouped by rows or by the dim that is summed over."""
    assert len(x) == len(weight) == 1 and split_item in (2, 3) and group_list_type == 0
    assert group_list.dtype == torch.int64 and x[0].numel() and weight[0].numel()
    rows = [slice(*ends) for ends in pairwise([0, *group_list.tolist()])]
    if group_type == 0:
        assert (x[0].dim(), weight[0].dim()) == (2, 3)
        return [torch.cat([x[0][row] @ weight[0][e] for e, row in enumerate(rows)])]
    assert group_type == 2 and x[0].t().is_contiguous() and weight[0].is_contiguous()
    return [torch.stack([x[0][:, row] @ weight[0][row] for row in rows])]


def moe_token_permute(tokens, indices, num_out_tokens=None, padded_mode=False):
    """Every copy, by expert."""
    assert indices.dtype == torch.int64 and num_out_tokens is None and not padded_mode
    order = torch.argsort(indices.flatten(), stable=True)
    return tokens[order // indices.shape[1]], torch.argsort(order).int()


def moe_token_unpermute(
    permuted_tokens, sorted_indices, probs=None, padded_mode=False, restore_shape=None
):
    """The sum over a token's copies, in the tokens' dtype."""
    assert probs.dtype == permuted_tokens.dtype and sorted_indices.dtype == torch.int32
    assert permuted_tokens.numel() and not padded_mode and restore_shape is None
    copies = permuted_tokens[sorted_indices.long()].unflatten(0, probs.shape)
    return (copies * probs[..., None]).sum(1)


OPERATORS = {
    "npu_fusion_attention": fusion_attention,
    "npu_rms_norm": rms_norm,
    "npu_swiglu": swiglu,
    "npu_rotary_mul": rotary_mul,
    "npu_grouped_matmul": grouped_matmul,
    "npu_moe_token_permute": moe_token_permute,
    "npu_moe_token_unpermute": moe_token_unpermute,
}
