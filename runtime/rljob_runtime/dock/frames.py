"""Frames: what goes over a dock connection, and the strict reading of their headers.

A frame is a fixed head (magic, version, kind, header length, payload length; little-endian), a
msgpack map, and raw bytes. Nothing is ever unpickled. The servers and the client share this code.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

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
    TAKE_OVER = 40
    EXPORT = 41
    SEED = 42
    IMPORT = 43
    FORWARD = 44


class MalformedFrame(Exception):
    """Bytes that are no frame, or a header that lacks what its kind needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message. fields: its header, read strictly. payload: raw column bytes."""

    kind: Kind
    fields: "Fields"
    payload: memoryview = field(default=memoryview(b""))


@dataclass(frozen=True, slots=True)
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

    def has(self, name: str) -> bool:
        """True when the field is there and not null."""
        return self.map.get(name) is not None


def _typed(name: str, value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise MalformedFrame(f"field {name!r} is {type(value).__name__}, not {kind.__name__}")
    return value


def pack(kind: Kind, header: dict[str, Any], payload_bytes: int = 0) -> bytes:
    """A frame's head and header; the payload's bytes follow it on the wire."""
    body: bytes = msgpack.packb(header)
    if len(body) > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"{kind.name} of {len(body)} + {payload_bytes} bytes is over the limit of "
            f"{MAX_HEADER_BYTES} + {MAX_PAYLOAD_BYTES}; use fewer rows a call"
        )
    return HEAD.pack(MAGIC, VERSION, kind, len(body), payload_bytes) + body


def read_head(head: bytes | bytearray | memoryview, *, trusted: bool) -> tuple[Kind, int, int]:
    """(kind, header bytes, payload bytes) of a fixed head. Raises MalformedFrame."""
    magic, version, kind, header_bytes, payload_bytes = HEAD.unpack(head)
    if magic != MAGIC:
        raise MalformedFrame(f"magic {bytes(magic)!r} is not {MAGIC!r}: no peer of the dock")
    if version != VERSION:
        raise MalformedFrame(f"protocol version {version}; this side speaks {VERSION}")
    try:
        known = Kind(kind)
    except ValueError:
        raise MalformedFrame(f"kind {kind} is unknown") from None
    if not trusted and header_bytes + payload_bytes > MAX_STRANGER_BYTES:
        raise MalformedFrame(f"{header_bytes + payload_bytes} bytes before the token was shown")
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise MalformedFrame(f"{header_bytes} + {payload_bytes} bytes are over the limit")
    return known, header_bytes, payload_bytes


def read_header(body: bytes | bytearray | memoryview) -> Fields:
    """The header's map. Raises MalformedFrame."""
    try:
        header = msgpack.unpackb(body, strict_map_key=True)
    except Exception as error:  # msgpack has no common base for what bad bytes raise
        raise MalformedFrame(f"header is no msgpack: {type(error).__name__}") from None
    return Fields(_typed("header", header, dict))
