"""Valid conversations with dock servers as frames, and how to spoil them: for fuzzing.

A conversation is a list of (kind, header, payload). `spoil` changes one thing of one frame; which is
decided by the caller's choices, so hypothesis, a fuzzer or a seed can drive it.
"""

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from stored_columns import encoded, stored
from stored_rows import Head, new_rows
from xxhash import xxh3_64_digest

from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_copy import StoreCopy
from rljob_runtime.dock.wire.frames import HEAD_BYTES, FrameKind, pack_head
from rljob_runtime.dock.wire.messages import Import

TOKEN = "secret"
GRAPH = StateGraph(
    states=(
        State(name="generate", needs=("prompt",), writes=("response",)),
        State(name="update", needs=("prompt", "response")),
    )
)
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 1 << 31, 2**63 - 1, -(2**63), 2**64 - 1),
    *(1.5, float("nan"), float("inf"), -1e308, 1e308),
    *("", "x", "update", "\x00", "é" * 300, b"", b"\xff" * 7, b"\xff" * 8, bytes(16)),
    *([], [[]], [None], [-1], [0, 0], ["f/0/0", "f/0/0"], [1 << 62] * 3, {}, {"name": 1}),
)
Frame = tuple[FrameKind, dict[str, Any], bytes]
Choose = Callable[[int], int]
"""Picks a number below its argument."""


def hello(role: str) -> Frame:
    identity = {"token": TOKEN, "role": role, "owner": "fuzz", "session": "fuzz-1"}
    return FrameKind.HELLO, identity, b""


def with_warehouse() -> list[Frame]:
    """Rows put, written, read and dropped, as a client, a controller and a neighbour would."""
    prompt = Ragged.from_rows([np.arange(9, dtype=np.int32)])
    response = Ragged.from_rows([np.arange(n, dtype=np.float16) for n in (3, 4)])
    entries, payload = _columns({}, {"prompt": prompt})
    written, bytes_written = _columns({"response": response})
    put = {
        "batch": "f",
        "total": 2,
        "states": ["generate", "update"],
        "rows": plain(
            new_rows([Head(f"f/0/{sample}", "f/0", 0, 2, sample, 0, 64) for sample in range(2)])
        ),
        "columns": entries,
        "timeout": 0.05,
    }
    uids = ["f/0/0", "f/0/1"]
    write = {"state": "generate", "lease": "l", "uids": uids, "version": 1, "timeout": 0.05}
    ends = {"state": "update", "lease": "l", "uids": uids, "columns": [], "timeout": 0.05}
    return [
        hello("warehouse/0"),
        (
            FrameKind.SUBSCRIBE,
            {"state": "update", "needs": ["response"], "seen": ["a.0", "a.1"]},
            b"",
        ),
        (FrameKind.PUT_ROWS, put, payload),
        (FrameKind.WRITE, {**write, "columns": written}, bytes_written),
        (FrameKind.READ, {"uids": uids, "columns": ["prompt", "response"]}, b""),
        (FrameKind.ATTACH, {}, b""),
        (FrameKind.RELEASE, {"pins": [1, 2]}, b""),
        (FrameKind.WRITE, ends, b""),
        (FrameKind.DROP_BATCH, {"batch": "f"}, b""),
        (FrameKind.STATS, {}, b""),
        (FrameKind.SEED, {"warehouse": 1}, b""),
        *_chunks(),
        (FrameKind.IMPORT, {"epoch": "b.3"}, b""),
        (FrameKind.FORWARD, {"put": {**put, "batch": "g"}}, payload),
        (FrameKind.TAKE_OVER, {"warehouse": 1}, b""),
        (FrameKind.EXPORT, {}, b""),
    ]


def with_controller() -> list[Frame]:
    """Claims and what belongs to them."""
    claim = {"request": "1", "batch": "f", "limit": 3, "whole_groups": False, "timeout": 0.02}
    share = {"request": "2", "batch": "f", "whole_groups": True, "share": [0, 2], "timeout": 0.02}
    return [
        hello("controller/update"),
        (FrameKind.CLAIM, claim, b""),
        (FrameKind.RENEW, {"leases": [{"lease": "x-1", "uids": ["f/0/0"]}]}, b""),
        (FrameKind.CLAIM, share, b""),
        (FrameKind.GIVE_BACK, {"lease": "x-1", "uids": ["f/0/0"]}, b""),
        (FrameKind.OWNER_GONE, {"owner": "somebody"}, b""),
        (FrameKind.STATS, {}, b""),
    ]


def spoil(frames: list[Frame], choose: Choose) -> list[bytes]:
    """The conversation as bytes, one thing in it changed."""
    place = choose(len(frames))
    kind, header, payload = frames[place]
    way = choose(8)
    raw: bytes | bytearray | None = None
    if way < 3:
        header = _spoiled(header, choose)
    elif way == 3:
        kind = [*FrameKind][choose(len(FrameKind))]
    elif way == 4:
        payload = payload[: choose(len(payload) + 1)] + bytes(choose(70))
    elif way == 5:
        raw = bytearray(packed(kind, header, payload))
        raw[choose(len(raw))] ^= 1 << choose(8)
    elif way == 6:
        whole = packed(kind, header, payload)
        raw = whole[: choose(len(whole))]
    else:
        lengths = (0, 1, HEAD_BYTES, 1 << 20, 1 << 31, 2**32 - 1)
        body = msgspec.msgpack.encode(header) + payload
        sizes = lengths[choose(len(lengths))], lengths[choose(len(lengths))] << choose(31)
        raw = pack_head(kind, *sizes) + body
    spoiled = packed(kind, header, payload) if raw is None else bytes(raw)
    return [spoiled if i == place else packed(*frame) for i, frame in enumerate(frames)]


def packed(kind: FrameKind, header: dict[str, Any], payload: bytes = b"") -> bytes:
    body = msgspec.msgpack.encode(header)
    return pack_head(kind, len(body), len(payload)) + sealed(body + payload)


def sealed(body: bytes) -> bytes:
    """A header and a payload with the sum that ends their frame."""
    return body + xxh3_64_digest(body)


def _spoiled(value: Any, choose: Choose) -> Any:
    """Somewhere inside, something else; or something less."""
    if isinstance(value, dict) and value and choose(6):
        key = [*value][choose(len(value))]
        if not choose(8):
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _spoiled(value[key], choose)}
    if isinstance(value, list) and value and choose(6):
        i = choose(len(value))
        return [*value[:i], _spoiled(value[i], choose), *value[i + 1 :]]
    if isinstance(value, bytes) and len(value) % 8 == 0 and value and choose(3):
        numbers = [-1, 0, 1, 1 << 20, 1 << 40, 1 << 62, -(1 << 63), 2**63 - 1]
        i = 8 * choose(len(value) // 8)
        return value[:i] + struct.pack("<q", numbers[choose(len(numbers))]) + value[i + 8 :]
    return JUNK[choose(len(JUNK))]


def _columns(
    columns: dict[str, Ragged], group_columns: dict[str, Ragged] | None = None
) -> tuple[list[dict[str, Any]], bytes]:
    heads, payload = encoded(columns, group_columns)
    return [plain(head) for head in heads], payload


def plain(message: msgspec.Struct) -> dict[str, Any]:
    """What it is on the wire."""
    found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return found


def _chunks() -> list[Frame]:
    """A store with a row, as its neighbour gets it."""
    store = WarehouseStore(graph=GRAPH, capacity_bytes=1 << 16)
    rows = new_rows([Head("n/0/0", "n/0", 0, 1, 0, 0, 64)])
    prompt = Ragged.from_rows([np.arange(9, dtype=np.int32)])
    store.put_rows(
        "n",
        total=1,
        states=["generate", "update"],
        rows=rows,
        columns={},
        group_columns={"prompt": stored(prompt)},
    )
    return [
        (FrameKind.IMPORT, plain(Import(chunk=chunk)), b"".join(bytes(part) for part in buffers))
        for chunk, buffers in StoreCopy(store).chunks()
    ]
