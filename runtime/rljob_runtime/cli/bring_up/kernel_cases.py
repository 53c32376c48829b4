"""All kernels with their forms and test inputs, and the comparison of two forms.

Called by `on_device`, and by tests on CPU, on emulated Ascend operators, and on a device.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.devices.kernels.flash_attention import (
    Sequences,
    flash_attention,
    flash_attention_ascend,
    flash_attention_reference,
)
from rljob_runtime.devices.kernels.grouped_matmul import (
    grouped_matmul,
    grouped_matmul_ascend,
    grouped_matmul_reference,
)
from rljob_runtime.devices.kernels.linear_logprobs import linear_logprobs, linear_logprobs_reference
from rljob_runtime.devices.kernels.matmul_add import matmul_add_, matmul_add_reference_
from rljob_runtime.devices.kernels.rms_norm import rms_norm, rms_norm_ascend, rms_norm_reference
from rljob_runtime.devices.kernels.rotary_embedding import rotate, rotate_ascend, rotate_reference
from rljob_runtime.devices.kernels.swiglu import swiglu, swiglu_ascend, swiglu_reference
from rljob_runtime.devices.kernels.token_permutation import (
    permute_tokens,
    permute_tokens_ascend,
    permute_tokens_reference,
    unpermute_tokens,
    unpermute_tokens_ascend,
    unpermute_tokens_reference,
)

# As a share of the largest value of the result. bfloat16 keeps 8 bits: two roundings of a value.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}


class RandomTensors:
    """Generates the tensors of a case in one dtype on one device, with a fixed seed."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self.dtype, self.device = dtype, device
        self._generator = torch.Generator().manual_seed(7)

    def __call__(self, *shape: int, gradient: bool = True) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator).to(self.device, self.dtype)
        return drawn.requires_grad_(gradient)

    def strided(self, *shape: int) -> Tensor:
        """Return every second value of a larger tensor whose dims are reversed in memory."""
        reversed_dims = torch.randn([2 * n for n in shape[::-1]], generator=self._generator)
        every_second = tuple(slice(None, None, 2) for _ in shape)
        view = reversed_dims.to(self.device, self.dtype).permute(*range(len(shape))[::-1])[
            every_second
        ]
        return view.detach().requires_grad_()

    def ints(self, values: list[int] | list[list[int]]) -> Tensor:
        """Return the values as an int64 tensor on the device."""
        return torch.tensor(values, device=self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The three forms of an operation; `kernel` picks one by device."""

    kernel: Callable[..., Tensor]
    ascend: Callable[..., Tensor]
    reference: Callable[..., Tensor]


KERNELS = {
    "attention": Kernel(
        kernel=flash_attention, ascend=flash_attention_ascend, reference=flash_attention_reference
    ),
    "norm": Kernel(kernel=rms_norm, ascend=rms_norm_ascend, reference=rms_norm_reference),
    "rope": Kernel(kernel=rotate, ascend=rotate_ascend, reference=rotate_reference),
    "swiglu": Kernel(kernel=swiglu, ascend=swiglu_ascend, reference=swiglu_reference),
    "matmul-add": Kernel(kernel=matmul_add_, ascend=matmul_add_, reference=matmul_add_reference_),
    "head": Kernel(
        kernel=lambda *x, **named: _concatenated(linear_logprobs(*x, **named)),
        ascend=lambda *x, **named: _concatenated(linear_logprobs(*x, **named)),
        reference=lambda *x, **named: _concatenated(linear_logprobs_reference(*x, **named)),
    ),
    "gmm": Kernel(
        kernel=grouped_matmul, ascend=grouped_matmul_ascend, reference=grouped_matmul_reference
    ),
    "permute": Kernel(
        kernel=lambda *x: permute_tokens(*x)[0],
        ascend=lambda *x: permute_tokens_ascend(*x)[0],
        reference=lambda *x: permute_tokens_reference(*x)[0],
    ),
    "unpermute": Kernel(
        kernel=unpermute_tokens,
        ascend=unpermute_tokens_ascend,
        reference=unpermute_tokens_reference,
    ),
}

Inputs = tuple[list[Any], dict[str, Any]]
CASES: dict[str, Callable[[RandomTensors], Inputs]] = {
    "norm odd width": lambda d: ([d(5, 7), d(7), 1e-6], {}),
    "norm one token": lambda d: ([d(1, 64), d(64), 1e-5], {}),
    "norm no token": lambda d: ([d(0, 16), d(16), 1e-5], {}),
    "norm strided": lambda d: ([d.strided(3, 5, 8), d(8), 1e-6], {}),
    "norm a head": lambda d: ([d(6, 3, 10), d(3, 10), 1e-6], {}),
    "rope halves": lambda d: ([d(5, 3, 10), *_angles(d, 5, 1, 5)], {}),
    "rope interleaved": lambda d: ([d(5, 3, 10), *_angles(d, 5, 1, 5)], {"interleaved": True}),
    "rope a batch": lambda d: ([d(2, 4, 3, 6), *_angles(d, 4, 1, 3)], {}),
    "rope strided": lambda d: ([d.strided(4, 2, 8), *_angles(d, 4, 1, 4)], {"interleaved": True}),
    "rope one token": lambda d: ([d(1, 1, 2), *_angles(d, 1, 1, 1)], {}),
    "rope no token": lambda d: ([d(0, 2, 4), *_angles(d, 0, 1, 2)], {}),
    "swiglu odd width": lambda d: ([d(4, 14)], {}),
    "swiglu one token": lambda d: ([d(1, 64)], {}),
    "swiglu no token": lambda d: ([d(0, 8)], {}),
    "swiglu strided": lambda d: ([d.strided(2, 3, 10)], {}),
    "matmul-add odd": lambda d: ([_buffer(d, 5, 3), *_detached(d(7, 5), d(7, 3))], {}),
    "matmul-add batch": lambda d: (
        [_buffer(d, 5, 3), *_detached(d(2, 4, 5), d.strided(2, 4, 3))],
        {},
    ),
    "matmul-add one token": lambda d: ([_buffer(d, 8, 4), *_detached(d(1, 8), d(1, 4))], {}),
    "matmul-add in pieces": lambda d: ([_buffer(d, 5, 3), *_detached(d(3075, 5), d(3075, 3))], {}),
    "matmul-add no token": lambda d: ([_buffer(d, 8, 4), *_detached(d(0, 8), d(0, 4))], {}),
    "head odd": lambda d: _head(d, 5, 7, 11, [4, 0, 2], temperature=0.7),
    "head shared positions": lambda d: _head(d, 3, 8, 20, [1, 1, 0, 1, 0]),
    "head entropy": lambda d: _head(d, 4, 8, 20, [3, 1, 1, 2], with_entropy=True, temperature=1.3),
    "head one token": lambda d: _head(d, 1, 4, 6, [0]),
    "head no token": lambda d: _head(d, 0, 4, 6, []),
    "head strided": lambda d: ([d.strided(4, 6), d.strided(9, 6), *_targets(d, 9, [2, 0, 3])], {}),
    "gmm odd": lambda d: ([d(9, 5), d(3, 5, 7), d.ints([2, 3, 9])], {}),
    "gmm empty groups": lambda d: ([d(6, 8), d(5, 8, 4), d.ints([0, 2, 2, 6, 6])], {}),
    "gmm one group": lambda d: ([d(4, 3), d(1, 3, 2), d.ints([4])], {}),
    "gmm one token": lambda d: ([d(1, 3), d(2, 3, 2), d.ints([0, 1])], {}),
    "gmm no token": lambda d: ([d(0, 3), d(2, 3, 2), d.ints([0, 0])], {}),
    "gmm transposed": lambda d: ([d(6, 4), _transposed(d, 2, 3, 4), d.ints([1, 6])], {}),
    "gmm strided": lambda d: ([d.strided(6, 5), d.strided(2, 5, 3), d.ints([4, 6])], {}),
    "permute": lambda d: ([d(4, 5), d.ints([[0, 4], [4, 3], [4, 2], [1, 1]])], {}),
    "permute one expert": lambda d: ([d.strided(3, 4), d.ints([[2], [0], [2]])], {}),
    "permute no token": lambda d: ([d(0, 4), d.ints([[0, 1]])[:0]], {}),
    "unpermute": lambda d: ([d(8, 5), _token_places(d, 4, 2), d(4, 2)], {}),
    "unpermute one expert": lambda d: ([d.strided(3, 4), _token_places(d, 3, 1), d(3, 1)], {}),
    "unpermute no token": lambda d: ([d(0, 4), _token_places(d, 0, 2), d(0, 2)], {}),
    "attention": lambda d: _packed(d, [(3, 3), (1, 1), (6, 6)], heads=(2, 2), widths=(5, 5)),
    "attention odd": lambda d: _packed(d, [(7, 7)], heads=(3, 3), widths=(5, 5), scale=0.2),
    "attention alike": lambda d: _packed(d, [(6, 6), (6, 6)], heads=(6, 2), widths=(8, 8)),
    "attention grouped": lambda d: _packed(d, [(4, 4), (2, 2)], heads=(6, 2), widths=(8, 8)),
    "attention latent": lambda d: _packed(d, [(4, 4), (2, 2)], heads=(2, 2), widths=(12, 8)),
    "attention wide value": lambda d: _packed(d, [(4, 4)], heads=(2, 2), widths=(6, 10)),
    "attention goes on": lambda d: _packed(
        d, [(2, 7), (1, 1), (3, 4)], heads=(2, 1), widths=(8, 8)
    ),
    "attention of long ones": lambda d: _packed(
        d, [(70, 90), (2, 3), (80, 80), (1, 70)], heads=(2, 1), widths=(4, 4)
    ),
    "attention shared keys": lambda d: _sharing(d, heads=(4, 2), widths=(8, 8)),
    "attention strided": lambda d: (
        [d.strided(5, 2, 8) for _ in range(3)] + [Sequences.apart([(2, 2), (3, 3)])],
        {},
    ),
    "attention empty": lambda d: _packed(d, [(0, 0), (3, 3), (0, 2)], heads=(2, 2), widths=(4, 4)),
    "attention no token": lambda d: _packed(d, [(0, 0)], heads=(2, 2), widths=(4, 4)),
}


def kernel_of(case: str) -> Kernel:
    """Return the kernel of a case, which its first word names."""
    return KERNELS[case.split()[0]]


def outputs_and_gradients(
    form: Callable[..., Tensor], case: str, dtype: torch.dtype, device: str = "cpu"
) -> dict[str, Tensor]:
    """Return the result of a form and the gradient of each argument that has one, as float32 on CPU."""
    arguments, settings = CASES[case](RandomTensors(dtype, device))
    output = form(*arguments, **settings)
    tensors = {"output": output}
    leaves = [x for x in arguments if isinstance(x, Tensor) and x.requires_grad]
    if leaves and output.numel():
        generator = torch.Generator().manual_seed(8)
        strided = torch.randn(output.shape[::-1], generator=generator).to(output)
        strided = strided.permute(*range(output.dim())[::-1])
        gradients = torch.autograd.grad(output, leaves, strided)
        tensors |= {f"gradient {i}": gradient for i, gradient in enumerate(gradients)}
    return {name: tensor.detach().float().cpu() for name, tensor in tensors.items()}


def worst_share(
    actual: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype
) -> float:
    """Return the largest difference as a share of TOLERANCE; inf for other names or shapes, and for NaN."""
    worst = 0.0 if actual.keys() == expected.keys() else float("inf")
    for name, tensor in expected.items():
        other = actual.get(name)
        if other is None or other.shape != tensor.shape or not bool(other.isfinite().all()):
            return float("inf")
        if tensor.numel():
            limit = TOLERANCE[dtype] * max(float(tensor.abs().max()), 1e-3)
            worst = max(worst, float((other - tensor).abs().max()) / limit)
    return worst


def _angles(draw: RandomTensors, *shape: int) -> tuple[Tensor, Tensor]:
    angle = draw(*shape, gradient=False).float()
    return angle.cos().to(draw.dtype), angle.sin().to(draw.dtype)


def _transposed(draw: RandomTensors, *shape: int) -> Tensor:
    """Return a tensor whose last two dims are transposed in memory, as in models' weights."""
    return draw(*shape).detach().transpose(-1, -2).requires_grad_()


def _buffer(draw: RandomTensors, *shape: int) -> Tensor:
    return draw(*shape, gradient=False).float()


def _head(
    draw: RandomTensors,
    positions: int,
    hidden: int,
    vocabulary: int,
    rows: list[int],
    **settings: object,
) -> Inputs:
    tensors = [draw(positions, hidden), draw(vocabulary, hidden)]
    return [*tensors, *_targets(draw, vocabulary, rows)], settings


def _targets(draw: RandomTensors, vocabulary: int, rows: list[int]) -> list[Tensor]:
    """Return a target per row, and the rows that predict them."""
    return [
        draw.ints([(5 * i + 3) % vocabulary for i in range(len(rows))]).long(),
        draw.ints(rows).long(),
    ]


def _concatenated(outputs: tuple[Tensor, Tensor | None]) -> Tensor:
    """Concatenate the log-probs with the entropies, if there are any."""
    return torch.cat([output for output in outputs if output is not None])


def _detached(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors]


def _token_places(draw: RandomTensors, tokens: int, experts: int) -> Tensor:
    experts_TK = draw.ints([[(3 * i + j * j) % 5 for j in range(experts)] for i in range(tokens)])
    experts_TK = experts_TK.view(tokens, experts)
    return permute_tokens_reference(torch.zeros(tokens, 1, device=draw.device), experts_TK)[1]


def _packed(
    draw: RandomTensors,
    lengths: list[tuple[int, int]],
    *,
    heads: tuple[int, int],
    widths: tuple[int, int],
    **settings: object,
) -> Inputs:
    queries, keys = (sum(pair[i] for pair in lengths) for i in (0, 1))
    tensors = _heads(draw, queries, keys, heads, widths)
    return [*tensors, _on_device(draw, Sequences.apart(lengths))], settings


def _sharing(draw: RandomTensors, *, heads: tuple[int, int], widths: tuple[int, int]) -> Inputs:
    """Return inputs with a prompt of 4 tokens, and two responses of 3 and 2 tokens that attend to it."""
    lengths, key_index = (
        [(4, 4), (3, 7), (2, 6)],
        [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 7, 8],
    )
    sequences = Sequences(lengths=lengths, key_index_K=torch.tensor(key_index))
    return [*_heads(draw, 9, 9, heads, widths), _on_device(draw, sequences)], {}


def _heads(
    draw: RandomTensors, queries: int, keys: int, heads: tuple[int, int], widths: tuple[int, int]
) -> list[Tensor]:
    return [
        draw(queries, heads[0], widths[0]),
        draw(keys, heads[1], widths[0]),
        draw(keys, heads[1], widths[1]),
    ]


def _on_device(draw: RandomTensors, sequences: Sequences) -> Sequences:
    return replace(sequences, key_index_K=sequences.key_index_K.to(draw.device))
