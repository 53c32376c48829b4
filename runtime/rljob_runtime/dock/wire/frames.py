"""Frames, the unit of a dock connection, and the strict parsing of their headers.

A frame is a fixed head (magic, version, kind, header length, payload length; little-endian), a msgpack map,
and raw bytes. A checksum follows the head, and another one the rest. Nothing is ever unpickled. The servers
and the client share this code; `messages` defines the maps.
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
"""Size of the fields and their XXH32."""
SUM_BYTES = 8
"""Size of the XXH3 of header and payload, at their end: four times as fast as zlib's CRC-32."""
DAMAGED_HEAD = "the head of a frame came with other bits than were sent"
MAX_STRANGER_BYTES = 4096
"""Maximum size of a frame from a peer that has not sent the token."""
MAX_HEADER_BYTES = 64 << 20
MAX_PAYLOAD_BYTES = 4 << 30


class FrameKind(IntEnum):
    """The kind of request or answer that a frame carries."""

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
    """The bytes are no frame, or a header lacks a field that its kind needs."""


class DamagedFrame(MalformedFrame, ConnectionError):
    """A frame arrived with other bits than were sent.

    Its connection is closed, and its request is sent again.
    """


KINDS = {int(kind): kind for kind in FrameKind}


class DockMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header of a frame: a map on the wire. Answers have the kind DONE."""

    kind: ClassVar[FrameKind] = FrameKind.DONE


class Frame(NamedTuple):
    """A received frame. header: valid until more is received. payload: raw column bytes."""

    kind: FrameKind
    header: bytes | memoryview
    payload: memoryview = memoryview(b"")

    def read(self, form: type[T]) -> T:
        """Decode the message. Raises MalformedFrame."""
        return read(form, self.header)


def pack(message: DockMessage, payload_bytes: int = 0) -> bytes:
    """Return a frame's head and header; on the wire the payload and the sum of header and payload follow."""
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
    """Return the fixed head with its sum."""
    fields = FIELDS.pack(magic, version, kind, header_bytes, payload_bytes)
    return fields + xxh32_digest(fields)


def check_body(actual: bytes, expected: memoryview, kind: FrameKind, num_bytes: int) -> None:
    """Raise DamagedFrame unless the sums of header and payload are equal."""
    if actual != expected:
        raise DamagedFrame(f"{kind.name} of {num_bytes} bytes came with other bits than were sent")


def read_head(
    data: bytes | bytearray | memoryview, offset: int = 0, *, trusted: bool
) -> tuple[FrameKind, int, int]:
    """Return (kind, header bytes, payload bytes) of the fixed head at `offset`.

    Raises MalformedFrame; DamagedFrame where the head of a trusted peer does not match its sum.
    """
    magic, version, kind, header_bytes, payload_bytes = FIELDS.unpack_from(data, offset)
    end = offset + FIELDS.size
    intact = xxh32_digest(memoryview(data)[offset:end]) == data[end : end + 4]
    if trusted and not intact:
        raise DamagedFrame(DAMAGED_HEAD)
    if magic != MAGIC:
        raise MalformedFrame(f"magic {bytes(magic)!r} is not {MAGIC!r}: no peer of the dock")
    if version != VERSION:
        raise MalformedFrame(f"protocol version {version}; this side speaks {VERSION}")
    if not intact:
        raise DamagedFrame(DAMAGED_HEAD)
    frame_kind = KINDS.get(kind)
    if frame_kind is None:
        raise MalformedFrame(f"kind {kind} is unknown")
    if not trusted and header_bytes + payload_bytes > MAX_STRANGER_BYTES:
        raise MalformedFrame(f"{header_bytes + payload_bytes} bytes before the token was shown")
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise MalformedFrame(f"{header_bytes} + {payload_bytes} bytes are over the limit")
    return frame_kind, header_bytes, payload_bytes


def pack_value(value: object) -> bytes:
    """Encode a value as msgpack."""
    return _encoder.encode(value)


def read(form: type[T], packed: bytes | memoryview) -> T:
    """Decode a message or another value; unknown fields are ignored.

    Raises MalformedFrame, which names the message, the field and what is wrong with it.
    """
    try:
        value: T = _decoder(form).decode(packed)
    except (ValueError, RecursionError) as error:  # also raised for bytes that are no Unicode
        raise MalformedFrame(f"{form.__name__}: {error}") from None
    return value


_decoder: Callable[[Any], msgspec.msgpack.Decoder[Any]] = cache(msgspec.msgpack.Decoder)
_encoder = msgspec.msgpack.Encoder()
