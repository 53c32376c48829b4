"""The product of generation: torch's own numbers, whichever library computes it."""

import pytest
import torch
import torch.nn.functional as F

from rljob_runtime.devices.kernels import product as kernel
from rljob_runtime.devices.kernels.product import product


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of the products that oneDNN was asked for."""
    tokens: list[int] = []
    pays = kernel._pays

    def noted(x_UI: torch.Tensor, weight_OI: torch.Tensor) -> bool:
        if answer := pays(x_UI, weight_OI):
            tokens.append(len(x_UI))
        return answer

    monkeypatch.setattr(kernel, "_pays", noted)
    return tokens


@pytest.mark.parametrize("with_bias", [False, True])
def test_products_are_those_of_torch(with_bias: bool, asked: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight_OI = torch.randn(700, 512, generator=generator)
    bias_O = torch.randn(700, generator=generator) if with_bias else None

    for tokens in (0, 1, 2, 3, 8, 33, 130):
        x_UI = torch.randn(tokens, 512, generator=generator)
        with torch.inference_mode():
            found_UO = product(x_UI, weight_OI, bias_O)
        expected_UO = F.linear(
            x_UI.double(), weight_OI.double(), None if bias_O is None else bias_O.double()
        )
        torch.testing.assert_close(found_UO.double(), expected_UO, atol=2e-4, rtol=1e-5)

    assert asked == [3, 8, 33, 130]


def test_parts_of_larger_tensors_are_multiplied(asked: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x_UI = torch.randn(40, 900, generator=generator)[:, 100:612]
    weight_OI = torch.randn(900, 512, generator=generator)[100:800]

    with torch.inference_mode():
        found_UO = product(x_UI, weight_OI)

    torch.testing.assert_close(found_UO, x_UI @ weight_OI.T, atol=2e-4, rtol=1e-5)
    assert asked == [40]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_and_other_types_are_torchs(dtype: torch.dtype, asked: list[int]) -> None:
    x_UI, weight_OI = torch.randn(40, 512, dtype=dtype), torch.randn(700, 512, dtype=dtype)

    if dtype == torch.float32:
        weight_OI.requires_grad_()
        product(x_UI, weight_OI).sum().backward()
        assert weight_OI.grad is not None
    else:
        with torch.inference_mode():
            assert product(x_UI, weight_OI).equal(F.linear(x_UI, weight_OI))

    assert asked == []
