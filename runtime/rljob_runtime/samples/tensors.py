"""The dock's columns in torch: tensors, jagged nested tensors, TensorDicts. Nothing is copied.

States that compute use it, and so do trainers that use the dock on its own. Only this file uses tensordict,
which is imported when a TensorDict is requested (extra `tensordict`).
"""

# n rows, V values of all rows together, L values of each row where all have as many

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from rljob_runtime.dock.columns import DTYPES, Array, Column, Ragged

if TYPE_CHECKING:
    from tensordict import TensorDict

BFLOAT16 = DTYPES["bfloat16"]


def tensor_of(values: Array) -> torch.Tensor:
    """Return a tensor over the array's memory. The memory of a `view` may only be read, and only within its
    context."""
    if values.dtype == BFLOAT16:  # unknown to numpy's DLPack
        return tensor_of(values.view(np.int16)).view(torch.bfloat16)
    return from_dlpack(values)  # from_numpy warns of memory that is read-only


def rows_of(column: Ragged, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Return the rows [length, ...] as views of the column's memory or, in another type, of one copy."""
    return list(torch.split(tensor_of(column.values).to(dtype), column.lengths.tolist()))


def array_of(tensor: torch.Tensor) -> Array:
    """Return an array over the tensor's memory; one on a device is copied to the host first."""
    host_tensor = tensor.detach().cpu().contiguous()
    if host_tensor.dtype == torch.bfloat16:
        return host_tensor.view(torch.int16).numpy().view(BFLOAT16)
    return host_tensor.numpy()


def nested_of(column: Column) -> torch.Tensor:
    """Return the rows as a jagged nested tensor [n, *, ...]."""
    offsets = np.concatenate([[0], np.cumsum(column.lengths)]).astype(np.int64)
    return torch.nested.nested_tensor_from_jagged(tensor_of(column.values), tensor_of(offsets))


def ragged_of(tensor: torch.Tensor) -> Ragged:
    """Return a column of n rows from a jagged nested tensor [n, *, ...], from [n, L, ...], or from [n], one
    value a row. Raises ValueError for a nested tensor with holes, and for types that a column cannot have."""
    if not tensor.is_nested:
        length = 1 if tensor.ndim == 1 else tensor.shape[1]
        values = tensor if tensor.ndim == 1 else tensor.flatten(0, 1)
        lengths = np.full(len(tensor), length, dtype=np.int64)
        return Ragged(values=array_of(values), lengths=lengths)
    jagged: Any = tensor  # the type's stubs have no nested tensors
    if tensor.layout != torch.jagged or jagged.lengths() is not None:
        raise ValueError(
            f"a nested tensor of layout {tensor.layout}, or with holes, is no column; make it with "
            "torch.nested.nested_tensor_from_jagged(values, offsets)"
        )
    return Ragged(values=array_of(jagged.values()), lengths=array_of(jagged.offsets().diff()))


def tensordict_of(columns: Mapping[str, Column]) -> "TensorDict":
    """Return a TensorDict of batch size [n] with a jagged nested tensor a column, from columns that `read` or
    `view` returned."""
    from tensordict import TensorDict

    rows = {len(column) for column in columns.values()}
    nested: dict[str, Any] = {name: nested_of(column) for name, column in columns.items()}
    return TensorDict(nested, batch_size=[*rows])


def columns_of(batch: "TensorDict") -> dict[str, Ragged]:
    """Return columns to `put` or `write` from a TensorDict of batch size [n]; nested names are joined by
    dots."""
    flat = batch.flatten_keys(".")
    return {name: ragged_of(tensor) for name, tensor in flat.items()}
