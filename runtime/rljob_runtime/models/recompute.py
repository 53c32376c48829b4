"""Activation checkpointing: the backward pass recomputes a function, so that only its inputs are kept.

The models call this layer by layer. Communication with other ranks is repeated in the same order on all
ranks, up to the last value that a gradient needs.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")


def checkpointed(function: Callable[..., Result], *arguments: object, **keywords: object) -> Result:
    """Return function(*arguments, **keywords), with the same bits in values and gradients (arXiv:1604.06174).

    The function must not draw random numbers.
    """
    if not torch.is_grad_enabled():
        return function(*arguments, **keywords)
    result: Result = checkpoint(
        partial(function, **keywords), *arguments, use_reentrant=False, preserve_rng_state=False
    )
    return result


def checkpointed_with_counter(
    function: Callable[..., Result], *arguments: object, counter: object
) -> Result:
    """Return `checkpointed` of function(*arguments, counter).

    counter: passed to the first computation alone; recomputation gets None. The backward pass does not keep a
    reference to it, as it does to the arguments: it may hold values of the function, which would then keep
    themselves alive forever, unless all of them are run backward.
    """
    counters = [counter]

    def run(*inputs: object) -> Result:
        return function(*inputs, counters.pop() if counters else None)

    return checkpointed(run, *arguments)
