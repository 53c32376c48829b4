"""What ranks that wait for each other in a pass agree on before they begin it, and after it.

Called by the states whose ranks share a model. A rank that fails alone would let the others wait until
their group's deadline.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import max_over_ranks, sum_over_ranks
from rljob_runtime.errors import DockError, DockLost


@contextlib.contextmanager
def agreed(group: ProcessGroup | None) -> Iterator[None]:
    """Raises the body's DockError, and DockLost on the other ranks of the group, once all are there."""
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
    """Whether it is so on any rank of the group."""
    found = torch.tensor([int(value)])
    max_over_ranks(found, group)
    return bool(found.item())
