"""Names of many rows or groups in two arrays: beside its letters a name takes four bytes.

Servers tell and keep them so; text is made of those that somebody asks for. Pure.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rljob_runtime.dock.growing import Array, Growing

ENDS = np.dtype("<u4")


class PackedNames(Struct, frozen=True):
    """Names as messages carry them. text: UTF-8, one name behind the other. ends: uint32, of each in it."""

    text: bytes = b""
    ends: bytes = b""


class Names:
    """Names in an order; more come behind them."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = Growing(ends=(np.uint32, 0))

    def __len__(self) -> int:
        return self._ends.length

    def at(self, places: Array) -> list[str]:
        """The names at these places."""
        return names_of(self.packed(places))

    def packed(self, places: Array) -> PackedNames:
        """The names at these places, for a message."""
        if not len(places):
            return PackedNames()
        ends, text = self._ends["ends"], self._text
        first = int(places[0])
        if int(places[-1]) - first == len(places) - 1 and (places[1:] > places[:-1]).all():
            start = int(ends[first - 1]) if first else 0
            lasts = ends[first : first + len(places)] - np.uint32(start)
            return PackedNames(bytes(text[start : start + int(lasts[-1])]), lasts.tobytes())
        lasts = ends[places].tolist()
        firsts = np.where(places > 0, ends[places - 1], 0).tolist()
        return _packed([text[a:b] for a, b in zip(firsts, lasts, strict=True)])

    def all(self) -> list[str]:
        """All names."""
        return self.at(np.arange(len(self)))

    def add(self, told: PackedNames) -> int:
        """Put names behind; returns how many. Raises ValueError where the ends are none of the text's."""
        ends = _ends(told)
        self._ends.add(ends=ends + len(self._text))
        self._text += told.text
        return len(ends)


def pack_names(names: Sequence[str]) -> PackedNames:
    """For a message."""
    return _packed([name.encode() for name in names])


def names_of(told: PackedNames) -> list[str]:
    """What `pack_names` made. Raises ValueError."""
    ends, text = _ends(told).tolist(), told.text.decode()
    if len(text) == len(told.text):  # a letter a byte
        return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return [told.text[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]


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


def _packed(names: Sequence[bytes | bytearray]) -> PackedNames:
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    return PackedNames(b"".join(names), ends.astype(ENDS).tobytes())


def _ends(told: PackedNames) -> Array:
    if len(told.ends) % ENDS.itemsize:
        raise ValueError(f"ends of {len(told.ends)} bytes are no 32-bit integers")
    ends = np.frombuffer(told.ends, dtype=ENDS)
    known = ends.tolist()
    last = known[-1] if known else 0
    if last != len(told.text) or known != sorted(known):
        raise ValueError(f"names end at byte {last} of {len(told.text)}")
    return ends
