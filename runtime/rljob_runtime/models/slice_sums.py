"""Checksums of a tensor's bits that show whether two devices hold the same slice.

The checks of a reshard call this. A sum is over elements, each multiplied by numbers that depend on its row
and column in the full tensor. It does not depend on how a box was cut, sums of chunks add up, and one wrong,
missing or misplaced element changes it. It does not protect against an adversary.
"""

# N items of an axis, R rows and C columns of a box

from functools import lru_cache

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import Box

HOST_CHUNK_ITEMS = 1 << 18
"""Items of a box that are multiplied at a time on a host: they fit into its caches."""
DEVICE_CHUNK_ITEMS = 1 << 24
"""Items multiplied at a time on a device: 64 MiB, so that a kernel runs longer than its launch takes."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
ROWS, COLUMNS = 0x9E3779B9, 0x85EBCA6B


def slice_sum(values: Tensor, box: Box) -> Tensor:
    """Return the checksum of a slice, int64 [].

    values: of the box, one or two dims. box: its position in the full tensor.
    """
    bits_RC = values.detach().reshape(box.size).view(INTEGERS[values.dtype.itemsize])
    row_R = _factors(box.bottom, ROWS, values.device)[box.top :].long()
    column_C = _factors(box.right, COLUMNS, values.device)[box.left :]
    total = row_R.new_zeros(())
    chunk_items = HOST_CHUNK_ITEMS if values.is_cpu else DEVICE_CHUNK_ITEMS
    chunk_rows = max(1, chunk_items // max(1, len(column_C)))
    for chunk_RC, chunk_R in zip(
        torch.split(bits_RC, chunk_rows), torch.split(row_R, chunk_rows), strict=True
    ):
        # A 32-bit product wraps around; as its factor is odd, it depends on all of the element's bits.
        total += ((chunk_RC.int() * column_C).sum(1, dtype=torch.int64) * chunk_R).sum()
    return total


@lru_cache(maxsize=64)
def _factors(count: int, salt: int, device: torch.device) -> Tensor:
    """Return odd numbers without a pattern, int32 [N], the same for all counts."""
    mixed_N = torch.arange(1, count + 1, dtype=torch.int64, device=device) * salt
    mixed_N = ((mixed_N ^ (mixed_N >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    mixed_N = ((mixed_N ^ (mixed_N >> 13)) & 0x7FFFFFFF) | 1
    return mixed_N.int()
