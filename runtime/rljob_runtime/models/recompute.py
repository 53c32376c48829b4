"""Parts of a model that the backward pass computes again, so that of their values only inputs are kept.

Called by the models, layer by layer. What a part sends other ranks it sends again, in the same order on all
ranks, up to the last value that a gradient needs.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")


def recomputed(part: Callable[..., Result], *arguments: object, **named: object) -> Result:
    """part(*arguments, **named), with the same bits in values and gradients (arXiv:1604.06174).

    The part draws no random numbers.
    """
    if not torch.is_grad_enabled():
        return part(*arguments, **named)
    found: Result = checkpoint(
        partial(part, **named), *arguments, use_reentrant=False, preserve_rng_state=False
    )
    return found


def recomputed_counting(part: Callable[..., Result], *arguments: object, once: object) -> Result:
    """`recomputed` of part(*arguments, once). once: what the first computation counts in; then it is None.

    The backward pass does not keep it, as it keeps the arguments: it may hold values of the part, which would
    then keep themselves alive for good, unless all of them are run backward.
    """
    left = [once]

    def run(*given: object) -> Result:
        return part(*given, left.pop() if left else None)

    return recomputed(run, *arguments)
