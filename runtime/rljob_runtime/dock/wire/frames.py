"""Frames: what goes over a dock connection, and the strict reading of their headers.

A frame is a fixed head (magic, version, kind, header length, payload length; little-endian), a
msgpack map, and raw bytes; a sum of its bits follows the head, and another one the rest. Nothing is ever
unpickled. The servers and the client share this code; `messages` has the maps.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
from xxhash import xxh32_digest

T = TypeVar("T")

MAGIC = b"RLJD"
VERSION = 6
FIELDS = struct.Struct("<4sHHIQ")
HEAD_BYTES = FIELDS.size + 4
"""The fields and their XXH32."""
SUM_BYTES = 8
"""XXH3 of header and payload, which end with it: four times as fast as a CRC-32 by zlib."""
DAMAGED_HEAD = "the head of a frame came with other bits than were sent"
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
    ASK_SLAB = 18
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


class DamagedFrame(MalformedFrame, ConnectionError):
    """A frame came with other bits than were sent: its connection is broken, what it said is asked for
    again."""


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
    """A frame's head and header; on the wire the payload's bytes follow, and the sum of all but the head."""
    body = _encoder.encode(message)
    if len(body) > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"{message.kind.name} of {len(body)} + {payload_bytes} bytes is over the limit of "
            f"{MAX_HEADER_BYTES} + {MAX_PAYLOAD_BYTES}; use fewer rows a call"
        )
    return pack_head(message.kind, len(body), payload_bytes) + body


def pack_head(
    kind: int,
    header_bytes: int,
    payload_bytes: int,
    *,
    magic: bytes = MAGIC,
    version: int = VERSION,
) -> bytes:
    """The fixed head with its sum."""
    fields = FIELDS.pack(magic, version, kind, header_bytes, payload_bytes)
    return fields + xxh32_digest(fields)


def check_body(found: bytes, sent: memoryview, kind: Kind, num_bytes: int) -> None:
    """Raise DamagedFrame unless the sums of header and payload are equal."""
    if found != sent:
        raise DamagedFrame(f"{kind.name} of {num_bytes} bytes came with other bits than were sent")


def read_head(
    data: bytes | bytearray | memoryview, place: int = 0, *, trusted: bool
) -> tuple[Kind, int, int]:
    """(kind, header bytes, payload bytes) of the fixed head at `place`. Raises MalformedFrame, DamagedFrame
    where a trusted peer's says nothing."""
    magic, version, kind, header_bytes, payload_bytes = FIELDS.unpack_from(data, place)
    end = place + FIELDS.size
    intact = xxh32_digest(memoryview(data)[place:end]) == data[end : end + 4]
    if trusted and not intact:
        raise DamagedFrame(DAMAGED_HEAD)
    if magic != MAGIC:
        raise MalformedFrame(f"magic {bytes(magic)!r} is not {MAGIC!r}: no peer of the dock")
    if version != VERSION:
        raise MalformedFrame(f"protocol version {version}; this side speaks {VERSION}")
    if not intact:
        raise DamagedFrame(DAMAGED_HEAD)
    known = KINDS.get(kind)
    if known is None:
        raise MalformedFrame(f"kind {kind} is unknown")
    if not trusted and header_bytes + payload_bytes > MAX_STRANGER_BYTES:
        raise MalformedFrame(f"{header_bytes + payload_bytes} bytes before the token was shown")
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise MalformedFrame(f"{header_bytes} + {payload_bytes} bytes are over the limit")
    return known, header_bytes, payload_bytes


def pack_value(value: object) -> bytes:
    """A value as msgpack."""
    return _encoder.encode(value)


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
