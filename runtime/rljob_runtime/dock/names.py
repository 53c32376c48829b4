"""Names of many rows or groups in two arrays: besides its letters a name takes four bytes.

Servers send and store names in this form and decode only those that are requested. Pure.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rljob_runtime.dock.growing import Array, GrowingTable

ENDS = np.dtype("<u4")


class PackedNames(Struct, frozen=True):
    """Names as messages carry them. text: UTF-8, names concatenated. ends: uint32, the end of each name."""

    text: bytes = b""
    ends: bytes = b""


class NameTable:
    """Names in an order; new ones are appended."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = GrowingTable(ends=(np.uint32, 0))

    def __len__(self) -> int:
        return self._ends.length

    def at(self, indices: Array) -> list[str]:
        """Return the names at these indices."""
        return unpack_names(self.packed(indices))

    def packed(self, indices: Array) -> PackedNames:
        """Return the names at these indices, for a message."""
        if not len(indices):
            return PackedNames()
        ends, text = self._ends["ends"], self._text
        first = int(indices[0])
        if int(indices[-1]) - first == len(indices) - 1 and (indices[1:] > indices[:-1]).all():
            start = int(ends[first - 1]) if first else 0
            lasts = ends[first : first + len(indices)] - np.uint32(start)
            return PackedNames(bytes(text[start : start + int(lasts[-1])]), lasts.tobytes())
        lasts = ends[indices].tolist()
        firsts = np.where(indices > 0, ends[indices - 1], 0).tolist()
        return _packed([text[a:b] for a, b in zip(firsts, lasts, strict=True)])

    def all(self) -> list[str]:
        """Return all names in order."""
        return self.at(np.arange(len(self)))

    def add(self, names: PackedNames) -> int:
        """Append names; return their number. Raises ValueError where the ends do not fit the text."""
        ends = _ends(names)
        self._ends.add(ends=ends + len(self._text))
        self._text += names.text
        return len(ends)


def pack_names(names: Sequence[str]) -> PackedNames:
    """Pack names for a message."""
    return _packed([name.encode() for name in names])


def unpack_names(names: PackedNames) -> list[str]:
    """Unpack the names that `pack_names` packed. Raises ValueError."""
    ends, text = _ends(names).tolist(), names.text.decode()
    if len(text) == len(names.text):  # one byte per letter
        return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return [names.text[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]


def select_names(names: PackedNames, mask: Array) -> PackedNames:
    """Return the names that a mask selects. Raises ValueError."""
    ends = _ends(names)
    if len(ends) != len(mask):
        raise ValueError(f"{len(ends)} names of {len(mask)}")
    if mask.all():
        return names
    indices = np.flatnonzero(mask)
    starts = np.concatenate([[0], ends])
    return _packed([names.text[starts[i] : ends[i]] for i in indices])


def _packed(names: Sequence[bytes | bytearray]) -> PackedNames:
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    return PackedNames(b"".join(names), ends.astype(ENDS).tobytes())


def _ends(names: PackedNames) -> Array:
    if len(names.ends) % ENDS.itemsize:
        raise ValueError(f"ends of {len(names.ends)} bytes are no 32-bit integers")
    ends = np.frombuffer(names.ends, dtype=ENDS)
    values = ends.tolist()
    last = values[-1] if values else 0
    if last != len(names.text) or values != sorted(values):
        raise ValueError(f"names end at byte {last} of {len(names.text)}")
    return ends
