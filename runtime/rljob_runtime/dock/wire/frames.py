"""Frames: what goes over a dock connection, and the strict reading of their headers.

A frame is a fixed head (magic, version, kind, header length, payload length; little-endian), a
msgpack map, and raw bytes. Nothing is ever unpickled. The servers and the client share this code.
"""

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import msgpack

T = TypeVar("T")

MAGIC = b"RLJD"
VERSION = 1
HEAD = struct.Struct("<4sHHIQ")
MAX_STRANGER_BYTES = 4096
"""A peer that has not shown the token may send no more than this in one frame."""
MAX_HEADER_BYTES = 64 << 20
MAX_PAYLOAD_BYTES = 4 << 30


class Kind(IntEnum):
    """What a frame asks or answers."""

    HELLO = 1
    DONE = 2
    FAILED = 3
    PUT_ROWS = 10
    WRITE = 11
    READ = 12
    DROP_BATCH = 13
    SUBSCRIBE = 14
    NOTICE = 15
    ATTACH = 16
    RELEASE = 17
    CLAIM = 20
    RENEW = 21
    GIVE_BACK = 22
    OWNER_GONE = 23
    STATS = 30
    INSPECT = 31
    TAKE_OVER = 40
    EXPORT = 41
    SEED = 42
    IMPORT = 43
    FORWARD = 44
    PULSE = 50


class _Own(threading.local):
    """A thread's packer: to make one costs more than to pack what most messages say."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer()


_own = _Own()


class MalformedFrame(Exception):
    """Bytes that are no frame, or a header that lacks what its kind needs."""


KINDS = {int(kind): kind for kind in Kind}


class Frame(NamedTuple):
    """One message. fields: its header, read strictly. payload: raw column bytes."""

    kind: Kind
    fields: "Fields"
    payload: memoryview = memoryview(b"")


@dataclass(slots=True)
class Fields:
    """A header's map with one accessor a type; each raises MalformedFrame naming the field."""

    map: dict[str, Any]

    def text(self, name: str) -> str:
        """A string."""
        return _typed(name, self.map.get(name), str)

    def integer(self, name: str) -> int:
        """An integer."""
        return _typed(name, self.map.get(name), int)

    def number(self, name: str) -> float:
        """A float or an integer."""
        value = self.map.get(name)
        return float(value) if type(value) is int else _typed(name, value, float)

    def flag(self, name: str) -> bool:
        """A boolean."""
        return _typed(name, self.map.get(name), bool)

    def binary(self, name: str) -> bytes:
        """Raw bytes."""
        return _typed(name, self.map.get(name), bytes)

    def items(self, name: str) -> list[Any]:
        """A list of anything."""
        return _typed(name, self.map.get(name), list)

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        return [_typed(name, item, str) for item in self.items(name)]

    def integers(self, name: str) -> list[int]:
        """A list of integers."""
        return [_typed(name, item, int) for item in self.items(name)]

    def maps(self, name: str) -> list["Fields"]:
        """A list of maps."""
        return [Fields(_typed(name, item, dict)) for item in self.items(name)]

    def numbers(self, name: str) -> dict[str, float]:
        """A map of floats."""
        items = _typed(name, self.map.get(name), dict)
        return {str(key): _typed(name, value, float) for key, value in items.items()}

    def has(self, name: str) -> bool:
        """True when the field is there and not null."""
        return self.map.get(name) is not None


def _typed(name: str, value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise MalformedFrame(f"field {name!r} is {type(value).__name__}, not {kind.__name__}")
    return value


def pack(kind: Kind, header: dict[str, Any], payload_bytes: int = 0) -> bytes:
    """A frame's head and header; the payload's bytes follow it on the wire."""
    body: bytes = _own.packer.pack(header)
    if len(body) > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"{kind.name} of {len(body)} + {payload_bytes} bytes is over the limit of "
            f"{MAX_HEADER_BYTES} + {MAX_PAYLOAD_BYTES}; use fewer rows a call"
        )
    return HEAD.pack(MAGIC, VERSION, kind, len(body), payload_bytes) + body


def read_head(
    data: bytes | bytearray | memoryview, place: int = 0, *, trusted: bool
) -> tuple[Kind, int, int]:
    """(kind, header bytes, payload bytes) of the fixed head at `place`. Raises MalformedFrame."""
    magic, version, kind, header_bytes, payload_bytes = HEAD.unpack_from(data, place)
    if magic != MAGIC:
        raise MalformedFrame(f"magic {bytes(magic)!r} is not {MAGIC!r}: no peer of the dock")
    if version != VERSION:
        raise MalformedFrame(f"protocol version {version}; this side speaks {VERSION}")
    known = KINDS.get(kind)
    if known is None:
        raise MalformedFrame(f"kind {kind} is unknown")
    if not trusted and header_bytes + payload_bytes > MAX_STRANGER_BYTES:
        raise MalformedFrame(f"{header_bytes + payload_bytes} bytes before the token was shown")
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise MalformedFrame(f"{header_bytes} + {payload_bytes} bytes are over the limit")
    return known, header_bytes, payload_bytes


def pack_value(value: list[Any]) -> bytes:
    """A list as msgpack, to be joined by `pack_joined`."""
    packed: bytes = _own.packer.pack(value)
    return packed


def pack_joined(values: Sequence[bytes]) -> bytes:
    """A list of values that were packed before, as msgpack."""
    head = b"\xdd" + len(values).to_bytes(4, "big")
    return b"".join([head, *values])


def unpack_values(packed: bytes) -> list[Any]:
    """The inverse of pack_joined. Raises MalformedFrame."""
    return _typed("values", _unpacked(packed), list)


def read_header(body: bytes | bytearray | memoryview) -> Fields:
    """The header's map. Raises MalformedFrame."""
    return Fields(_typed("header", _unpacked(body), dict))


def _unpacked(body: bytes | bytearray | memoryview) -> Any:
    try:
        return msgpack.unpackb(body, strict_map_key=True)
    except Exception as error:  # msgpack has no common base for what bad bytes raise
        raise MalformedFrame(f"header is no msgpack: {type(error).__name__}") from None
