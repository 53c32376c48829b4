"""Sums of a tensor's bits by which two devices see that they hold the same slice.

Called by the checks of a reshard. A sum is over elements, each multiplied by numbers that depend on its row
and column in the whole tensor: it does not depend on how a box was cut, sums of parts add up, and one wrong,
missing or misplaced element changes it. Not against an adversary.
"""

# N items of an axis, R rows and C columns of a box

from functools import lru_cache

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import Box

AT_ONCE = 1 << 18
"""Items of a box that are multiplied at a time, on a host: what its caches hold."""
AT_ONCE_ON_DEVICES = 1 << 24
"""Likewise: 64 MiB, so that a device has work for longer than a call takes."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
ROWS, COLUMNS = 0x9E3779B9, 0x85EBCA6B


def slice_sum(values: Tensor, box: Box) -> Tensor:
    """int64 []. values: of the box, one or two dims; box: its place in the whole tensor."""
    bits_RC = values.detach().reshape(box.size).view(INTEGERS[values.dtype.itemsize])
    row_R = _factors(box.bottom, ROWS, values.device)[box.top :].long()
    column_C = _factors(box.right, COLUMNS, values.device)[box.left :]
    total = row_R.new_zeros(())
    at_once = AT_ONCE if values.is_cpu else AT_ONCE_ON_DEVICES
    each = max(1, at_once // max(1, len(column_C)))
    for part_RC, part_R in zip(torch.split(bits_RC, each), torch.split(row_R, each), strict=True):
        # A 32-bit product wraps around; as its factor is odd, it tells all of the element's bits.
        total += ((part_RC.int() * column_C).sum(1, dtype=torch.int64) * part_R).sum()
    return total


@lru_cache(maxsize=64)
def _factors(count: int, salt: int, device: torch.device) -> Tensor:
    """Odd numbers without a pattern, int32 [N], the same for all counts."""
    mixed_N = torch.arange(1, count + 1, dtype=torch.int64, device=device) * salt
    mixed_N = ((mixed_N ^ (mixed_N >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    mixed_N = ((mixed_N ^ (mixed_N >> 13)) & 0x7FFFFFFF) | 1
    return mixed_N.int()
