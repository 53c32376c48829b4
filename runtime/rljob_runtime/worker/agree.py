"""Agreement between ranks that wait for each other in a pass, before it begins and after it.

The states whose ranks share a model call this. If one rank failed alone, the others would wait until their
group's deadline.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import max_over_ranks, sum_over_ranks
from rljob_runtime.errors import DockError, DockLost


@contextlib.contextmanager
def fail_together(group: ProcessGroup | None) -> Iterator[None]:
    """Raise the body's DockError, and DockLost on the other ranks of the group, once all have arrived."""
    failure: DockError | None = None
    try:
        yield
    except DockError as error:
        failure = error
    failed = torch.tensor([int(failure is not None)])
    sum_over_ranks(failed, group)
    if failure is not None:
        raise failure
    if failed.item():
        raise DockLost(f"{int(failed)} other ranks could not read or write their share")


def any_of(group: ProcessGroup | None, value: bool) -> bool:
    """Return whether the value is true on any rank of the group."""
    flag = torch.tensor([int(value)])
    max_over_ranks(flag, group)
    return bool(flag.item())
