"""The tensors of low-rank adapters on a model.

Low-rank adaptation, arXiv:2106.09685: a frozen matrix W is used as W + alpha / rank · B A. Names are
PEFT's: `lora_A.weight` is A [rank, columns of W], `lora_B.weight` is B [rows of W, rank].
"""

from collections.abc import Iterator
from dataclasses import replace

from rljob_api.model.architecture import Shape
from rljob_api.model.tensors import Cut, TensorSpec, layer_tensors, tensors_of
from rljob_api.spec.lora import ALL_LINEAR, Lora

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
ROUTER = ".mlp.gate.weight"
COLUMN_CUTS = (Cut.HEAD_COLUMNS, Cut.COLUMNS)


def is_adapter(name: str) -> bool:
    """Whether this is the name of an adapter's tensor."""
    return name.endswith((LORA_A, LORA_B))


def legal_targets(shape: Shape) -> list[str]:
    """List the module names that can have adapters, in the model's order. The stacked matrices of experts
    cannot."""
    return list(
        dict.fromkeys(_module(tensor) for tensor in tensors_of(shape) if _adaptable(tensor))
    )


def targets_of(lora: Lora, shape: Shape) -> list[str]:
    """Return the names of the modules that get adapters."""
    return legal_targets(shape) if lora.target_modules == [ALL_LINEAR] else lora.target_modules


def adapter_tensors(lora: Lora, shape: Shape) -> Iterator[TensorSpec]:
    """Yield all adapters, A before B. If ranks cut a matrix by rows, they also cut B by rows and repeat A. If
    they cut it by columns, they also cut A by columns and repeat B."""
    targets = targets_of(lora, shape)
    for tensor in tensors_of(shape):
        if _adaptable(tensor) and _module(tensor) in targets:
            yield from adapters_of(tensor, lora.rank)


def adapters_of(tensor: TensorSpec, rank: int) -> tuple[TensorSpec, TensorSpec]:
    """Return the adapters A and B of a matrix."""
    rows, columns = tensor.shape
    stem, by_columns = tensor.name.removesuffix(".weight"), tensor.cut in COLUMN_CUTS
    a_cut, b_cut = (tensor.cut, Cut.WHOLE) if by_columns else (Cut.WHOLE, tensor.cut)
    return (
        replace(tensor, name=stem + LORA_A, shape=(rank, columns), cut=a_cut),
        replace(tensor, name=stem + LORA_B, shape=(rows, rank), cut=b_cut),
    )


def adapted_in_every_layer(lora: Lora, shape: Shape) -> bool:
    """Return whether each layer has an adapter."""
    targets = targets_of(lora, shape)
    return all(
        any(_adaptable(tensor) and _module(tensor) in targets for tensor in layer_tensors(shape, i))
        for i in range(shape.layers)
    )


def smallest_target(lora: Lora, shape: Shape) -> TensorSpec | None:
    """Return the targeted matrix of the lowest rank, or None without targets."""
    targets = targets_of(lora, shape)
    targeted = (t for t in tensors_of(shape) if _adaptable(t) and _module(t) in targets)
    return min(targeted, key=lambda tensor: min(tensor.shape), default=None)


def _adaptable(tensor: TensorSpec) -> bool:
    return (
        tensor.layer is not None
        and tensor.expert is None
        and len(tensor.shape) == 2
        and not tensor.name.endswith(ROUTER)
    )


def _module(tensor: TensorSpec) -> str:
    return tensor.name.split(".")[-2]
