"""MatmulAdd: a linear layer's weight gradient, alone or added into a buffer. Called in its backward.

It is a product of two matrices over all their rows: few values, each a sum over thousands of tokens, which
torch's own product on CPU (MKL) is slow at. Where the weight is small, products of pieces of the rows, side
by side and then added up, were 1.1 to 2.8 times as fast on 8,192 rows (two threads of an Intel Xeon).
"""

# N output features, K input features, M rows

import torch
from torch import Tensor

PIECE_ROWS = 1024
"""At least so many rows are a piece: below, adding pieces up costs what they save."""
MOST_PIECES = 8
LARGEST_SPLIT = 1 << 18
"""Values of a weight up to which pieces pay; 8 of them are 8 MiB."""


def matmul_add_(gradient_NK: Tensor, output_gradient: Tensor, x: Tensor) -> Tensor:
    """Add output_gradientᵀ x into the gradient in place, which is float32 or wider; returns it.

    output_gradient: [..., N]. x: [..., K]. Their product is taken and added in its dtype whatever
    their dtype, so that small contributions of many micro-batches are not rounded away. One form for
    all devices: torch_npu has no fused operator for Ascend A2 and A3 (MindSpeed compiles its own).
    """
    wide = gradient_NK.dtype
    output_gradient, x = (part.reshape(-1, part.shape[-1]) for part in (output_gradient, x))
    output_gradient, x = output_gradient.to(wide), x.to(wide)
    if num_pieces(x, gradient_NK) > 1:
        return gradient_NK.add_(matmul_over_rows(output_gradient, x))
    return gradient_NK.addmm_(output_gradient.t(), x)


def matmul_over_rows(output_gradient_MN: Tensor, x_MK: Tensor) -> Tensor:
    """output_gradientᵀ x, [N, K], in their dtype."""
    product_NK = output_gradient_MN.new_empty(output_gradient_MN.shape[1], x_MK.shape[1])
    pieces = num_pieces(x_MK, product_NK)
    if pieces == 1:
        return torch.mm(output_gradient_MN.t(), x_MK, out=product_NK)
    split = len(x_MK) - len(x_MK) % pieces
    left, right = (
        part[:split].view(pieces, -1, part.shape[1]) for part in (output_gradient_MN, x_MK)
    )
    torch.sum(torch.bmm(left.transpose(1, 2), right), 0, out=product_NK)
    if split < len(x_MK):
        product_NK.addmm_(output_gradient_MN[split:].t(), x_MK[split:])
    return product_NK


def num_pieces(x: Tensor, weight_NK: Tensor) -> int:
    """Pieces of x's rows, [..., K], that its product with a gradient is taken in; 1: in one."""
    if not x.is_cpu or x.dtype != torch.float32 or weight_NK.numel() > LARGEST_SPLIT:
        return 1
    return max(1, min(MOST_PIECES, x.numel() // x.shape[-1] // PIECE_ROWS))


def matmul_add_reference_(gradient_NK: Tensor, output_gradient: Tensor, x: Tensor) -> Tensor:
    """`matmul_add_` in plain torch."""
    product = (
        (output_gradient.float().unsqueeze(-1) * x.float().unsqueeze(-2)).flatten(0, -3).sum(0)
    )
    return gradient_NK.copy_(gradient_NK + product)
