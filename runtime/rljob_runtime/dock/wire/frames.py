"""Frames: what goes over a dock connection, and the strict reading of their headers.

A frame is a fixed head (magic, version, kind, header length, payload length; little-endian), a
msgpack map, and raw bytes. Nothing is ever unpickled. The servers and the client share this code;
`messages` has the maps.
"""

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

MAGIC = b"RLJD"
VERSION = 2
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


class MalformedFrame(Exception):
    """Bytes that are no frame, or a header that lacks what its kind needs."""


KINDS = {int(kind): kind for kind in Kind}


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a frame's header says: a map on the wire. One that answers has the kind DONE."""

    kind: ClassVar[Kind] = Kind.DONE


class Frame(NamedTuple):
    """A frame as it came. header: of use until more is received. payload: raw column bytes."""

    kind: Kind
    header: bytes | memoryview
    payload: memoryview = memoryview(b"")

    def read(self, form: type[T]) -> T:
        """Its message. Raises MalformedFrame."""
        return read(form, self.header)


def pack(message: Message, payload_bytes: int = 0) -> bytes:
    """A frame's head and header; the payload's bytes follow it on the wire."""
    body = _encoder.encode(message)
    if len(body) > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"{message.kind.name} of {len(body)} + {payload_bytes} bytes is over the limit of "
            f"{MAX_HEADER_BYTES} + {MAX_PAYLOAD_BYTES}; use fewer rows a call"
        )
    return HEAD.pack(MAGIC, VERSION, message.kind, len(body), payload_bytes) + body


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


def pack_value(value: object) -> bytes:
    """A value as msgpack, to be joined by `pack_joined`."""
    return _encoder.encode(value)


def pack_joined(values: Sequence[bytes]) -> bytes:
    """A list of values that were packed before, as msgpack; `read` knows it as a list."""
    head = b"\xdd" + len(values).to_bytes(4, "big")
    return b"".join([head, *values])


def read(form: type[T], packed: bytes | memoryview) -> T:
    """A message, or another value. Fields that it does not know are ignored. Raises MalformedFrame,
    which names the message, the field and what is wrong with it."""
    try:
        value: T = _decoder(form).decode(packed)
    except (ValueError, RecursionError) as error:  # also of bytes that are no Unicode
        raise MalformedFrame(f"{form.__name__}: {error}") from None
    return value


_decoder: Callable[[Any], msgspec.msgpack.Decoder[Any]] = cache(msgspec.msgpack.Decoder)
_encoder = msgspec.msgpack.Encoder()
