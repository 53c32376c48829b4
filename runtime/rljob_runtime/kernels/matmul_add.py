"""MatmulAdd: a linear layer's weight gradient added into a float32 buffer. Called in its backward."""

# N output features, K input features

from torch import Tensor


def matmul_add_(gradient_NK: Tensor, output_gradient: Tensor, x: Tensor) -> Tensor:
    """Add output_gradientᵀ x into the float32 gradient in place; returns it.

    output_gradient: [..., N]. x: [..., K]. Their product is taken and added in float32 whatever
    their dtype, so that small contributions of many micro-batches are not rounded away. One form for
    all devices: torch_npu has no fused operator for Ascend A2 and A3 (MindSpeed compiles its own).
    """
    output_gradient, x = (part.reshape(-1, part.shape[-1]).float() for part in (output_gradient, x))
    return gradient_NK.addmm_(output_gradient.t(), x)


def matmul_add_reference_(gradient_NK: Tensor, output_gradient: Tensor, x: Tensor) -> Tensor:
    """`matmul_add_` in plain torch."""
    product = (
        (output_gradient.float().unsqueeze(-1) * x.float().unsqueeze(-2)).flatten(0, -3).sum(0)
    )
    return gradient_NK.copy_(gradient_NK + product)
