"""The emulated chips: their numbers, what a container gets of them, and which allocation is preferred.

Pure; called by `service` and `faults`. A chip's number is its device id at the kubelet.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from rljob_device_plugin.errors import UnknownChip

# Chips of one ring reach each other directly, those of two rings through the host.
RING_CHIPS = 4
EMULATED_FILE = "/dev/null"


def numbers(ids: Iterable[str], *, count: int) -> list[int]:
    """Return the chips that `ids` name, ascending. Raises UnknownChip for an id that is not 0 to count -
    1."""
    by_id = {str(chip): chip for chip in range(count)}
    try:
        return sorted({by_id[name] for name in ids})
    except KeyError as error:
        raise UnknownChip(f"no chip {error}: this node has 0 to {count - 1}") from error


def device_file(chip: int) -> str:
    """Return the path of `chip` in a container. Ray counts these files to find how many NPUs it has."""
    return f"/dev/davinci{chip}"


def environment(chips: Sequence[int]) -> dict[str, str]:
    """Return the variables that Ascend's device plugin sets in a container with `chips`."""
    return {"ASCEND_VISIBLE_DEVICES": ",".join(str(chip) for chip in chips)}


def preferred(available: Collection[int], required: Collection[int], *, size: int) -> list[int]:
    """Return `size` chips, ascending: `required`, then the lowest available, of one ring if that suffices.

    It returns fewer only if fewer are available, and more only if more are required.
    """
    chosen = set(required)
    free = sorted(set(available) - chosen)
    rings = [set(ring) for _, ring in groupby(sorted({*free, *chosen}), _ring)]
    fitting = [ring for ring in rings if chosen <= ring and len(ring) >= size]
    if fitting:
        free = sorted(fitting[0] - chosen)
    return sorted(chosen | set(free[: max(0, size - len(chosen))]))


def _ring(chip: int) -> int:
    return chip // RING_CHIPS
