"""Names of many rows or groups in two arrays: beside its letters a name takes four bytes.

Servers tell and keep them so; text is made of those that somebody asks for. Pure.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from rljob_runtime.dock.growing import Array, Growing

ENDS = np.dtype("<i4")


class PackedNames(Struct, frozen=True):
    """Names as messages carry them. text: UTF-8, one name behind the other. ends: int32, of each in it."""

    text: bytes = b""
    ends: bytes = b""


class Names:
    """Names in an order; more come behind them."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = Growing(ends=(np.uint32, 0))

    def __len__(self) -> int:
        return self._ends.length

    def at(self, places: Iterable[int]) -> list[str]:
        """The names at these places."""
        ends, text = self._ends["ends"], self._text
        return [
            text[int(ends[place - 1]) if place else 0 : int(ends[place])].decode()
            for place in places
        ]

    def add(self, told: PackedNames) -> int:
        """Put names behind; returns how many. Raises ValueError where the ends are none of the text's."""
        ends = _ends(told)
        self._ends.add(ends=ends + len(self._text))
        self._text += told.text
        return len(ends)


def pack_names(names: Sequence[str]) -> PackedNames:
    """For a message."""
    return _packed([name.encode() for name in names])


def picked(told: PackedNames, which: Array) -> PackedNames:
    """Those of a mask. Raises ValueError."""
    ends = _ends(told)
    if len(ends) != len(which):
        raise ValueError(f"{len(ends)} names of {len(which)}")
    if which.all():
        return told
    places = np.flatnonzero(which)
    starts = np.concatenate([[0], ends])
    return _packed([told.text[starts[i] : ends[i]] for i in places])


def _packed(names: Sequence[bytes]) -> PackedNames:
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    return PackedNames(b"".join(names), ends.astype(ENDS).tobytes())


def _ends(told: PackedNames) -> Array:
    if len(told.ends) % ENDS.itemsize:
        raise ValueError(f"ends of {len(told.ends)} bytes are no 32-bit integers")
    ends = np.frombuffer(told.ends, dtype=ENDS).astype(np.int64)
    last = int(ends[-1]) if len(ends) else 0
    if last != len(told.text) or (np.diff(ends, prepend=0) < 0).any():
        raise ValueError(f"names end at byte {last} of {len(told.text)}")
    return ends
