"""The experts' grouped product against a loop over tokens, in the types and widths of both ways."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.models.blocks.experts import run_experts
from rljob_runtime.models.blocks.router import Routes

# U tokens, H hidden, E experts, I inner width, K experts of a token
U, E, K = 12, 5, 2


def token_by_token(x_UH: Tensor, routes: Routes, gate_up: Tensor, down: Tensor) -> Tensor:
    rows = []
    for x_H, experts, weights in zip(x_UH, routes.experts_UK, routes.weights_UK, strict=True):
        outputs = []
        for expert, weight in zip(experts.tolist(), weights, strict=True):
            gate, up = (gate_up[expert] @ x_H).chunk(2)
            outputs.append(weight * (down[expert] @ (F.silu(gate) * up)))
        rows.append(torch.stack(outputs).sum(0).to(x_H.dtype))
    return torch.stack(rows)


def make(hidden: int, inner: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(dtype).requires_grad_()

    return draw(U, hidden), draw(E, 2 * inner, hidden), draw(E, hidden, inner)


def make_routes(busy: list[int]) -> Routes:
    """Each token goes to two of these experts; the others get none."""
    random = torch.Generator().manual_seed(1)
    chosen = torch.rand(U, len(busy), generator=random).topk(K, dim=-1).indices
    weights = torch.rand(U, K, generator=random)
    return Routes(
        experts_UK=torch.tensor(busy)[chosen],
        weights_UK=weights.requires_grad_(),
        probabilities_UE=torch.zeros(U, E),
    )


@pytest.mark.parametrize(
    ("dtype", "widths", "tolerance"),
    [
        (torch.float32, (16, 8), 1e-5),  # grouped
        (torch.float32, (6, 5), 1e-5),  # rows that are not aligned: looped
        (torch.float64, (16, 8), 1e-12),  # a type without a grouped product: looped
        (torch.bfloat16, (16, 8), 0.25),
    ],
)
@pytest.mark.parametrize("busy", [[0, 1, 2, 3, 4], [1, 3]])
def test_output_and_gradients_equal_those_token_by_token(
    dtype: torch.dtype, widths: tuple[int, int], tolerance: float, busy: list[int]
) -> None:
    weights, routes = make(*widths, dtype), make_routes(busy)
    inputs = [*weights, routes.weights_UK]
    x_UH, gate_up, down = weights

    ours = run_experts(x_UH, routes, gate_up, down)
    expected = token_by_token(x_UH, routes, gate_up, down)

    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=0.02)
    towards = torch.linspace(-1, 1, ours.numel()).view_as(ours).to(dtype)
    found = torch.autograd.grad(ours, inputs, towards)
    for gradient, plain in zip(found, torch.autograd.grad(expected, inputs, towards), strict=True):
        scale = plain.abs().max().clamp(min=1.0)
        torch.testing.assert_close(gradient / scale, plain / scale, atol=tolerance, rtol=0.02)
