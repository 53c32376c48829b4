"""A store made of another one's chunks answers every later message as that one does."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numbered_rows import pack
from stored_columns import stored
from stored_rows import Head, bytes_of, live_uids, new_rows

from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.warehouse.notices import snapshot_for
from rljob_runtime.dock.warehouse.slabs import NoRoom
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_copy import StoreCopy, add_chunk, clear
from rljob_runtime.dock.wire.frames import MalformedFrame, pack_value, read
from rljob_runtime.dock.wire.messages import Chunk
from rljob_runtime.errors import DockError

GRAPH = StateGraph(
    states=(
        State(name="generate", needs=("prompt",), writes=("response", "logprobs")),
        State(name="reward", needs=("response",), writes=("reward",)),
        State(name="update", needs=("logprobs", "reward")),
    )
)
SAMPLES = 2

puts = st.tuples(
    st.just("put"),
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True),
    st.sampled_from([0, 90, 400]),
)
writes = st.tuples(
    st.just("write"),
    st.sampled_from(GRAPH.names),
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 4), st.integers(0, 1)),
        min_size=1,
        max_size=5,
        unique=True,
    ),
    st.integers(0, 40),
)
drops = st.tuples(st.just("drop"), st.sampled_from(["a", "b", "c"]))
messages = st.lists(puts | writes | writes | drops, max_size=25)


def empty_store(capacity_bytes: int) -> WarehouseStore:
    return WarehouseStore(graph=GRAPH, capacity_bytes=capacity_bytes)


def carry_out(store: WarehouseStore, message: tuple) -> object:
    """The store's answer, or how it refused."""
    try:
        return ANSWERS[message[0]](store, *message[1:])
    except (DockError, NoRoom) as error:
        return type(error).__name__, str(error)


def put(store: WarehouseStore, batch: str, groups: list[int], reserve_bytes: int) -> int:
    heads = [
        Head(
            uid=f"{batch}/{g}/{s}",
            group=f"{batch}/{g}",
            group_index=g,
            group_size=SAMPLES,
            sample=s,
            version=g,
            reserve_bytes=reserve_bytes,
        )
        for g in groups
        for s in range(SAMPLES)
    ]
    return store.put_rows(
        batch,
        total=10,
        states=GRAPH.names[:2] if batch == "c" else GRAPH.names,
        rows=new_rows(heads),
        columns={
            "seed": stored(Ragged.from_rows([np.full((1, 2), 3, dtype=np.int64) for _ in heads]))
        },
        group_columns={
            "prompt": stored(Ragged.from_rows([np.arange(g, dtype=np.int32) for g in groups]))
        },
    )


def write(store: WarehouseStore, state: str, rows: list[tuple], length: int) -> object:
    uids = [f"{batch}/{g}/{s}" for batch, g, s in rows]
    names = GRAPH.state(state).writes
    columns = {
        name: stored(
            Ragged.from_rows([np.full(length + i, i, dtype=np.float32) for i in range(len(uids))])
        )
        for name in names
    }
    return store.write(
        state=state, lease=f"lease-{length % 2}", uids=uids, columns=columns, version=length
    )


ANSWERS: dict[str, Any] = {"put": put, "write": write, "drop": WarehouseStore.drop_batch}


def copy_of(store: WarehouseStore, chunk_bytes: int) -> WarehouseStore:
    """By way of the wire."""
    made = empty_store(store.capacity_bytes)
    copy = StoreCopy(store)
    for chunk, buffers in copy.chunks(chunk_bytes):
        add_chunk(made, read(Chunk, pack_value(chunk)), memoryview(b"".join(buffers)))
    copy.release()
    return made


def content(store: WarehouseStore) -> object:
    """All that a controller or a reader can learn of a store."""
    snapshots = [
        snapshot_for(
            store.batches.values(),
            state=state,
            needs=frozenset(GRAPH.state(state).needs),
            epoch="",
        )
        for state in GRAPH.names
    ]
    held = {}
    for uid in live_uids(store):
        for record in store.batches.values():
            for name in record.columns.formats:
                with contextlib.suppress(DockError):
                    (found,) = store.read([uid], [name])
                    lengths = [run.lengths(name) for run in found.runs]
                    held[uid, name] = (lengths, bytes_of(store, found))
    return snapshots, held, store.charged_bytes, store.unacknowledged()


@given(
    before=messages,
    after=messages,
    chunk_bytes=st.sampled_from([1, 200, 1 << 20]),
    capacity_bytes=st.sampled_from([6_000, 1 << 20]),
)
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_a_copy_answers_every_later_message_as_the_original(
    before, after, chunk_bytes, capacity_bytes
) -> None:
    original = empty_store(capacity_bytes)
    for message in before:
        carry_out(original, message)
    original.take_notices()

    copy = copy_of(original, chunk_bytes)

    assert content(copy) == content(original)
    for message in [*after, *before]:
        assert carry_out(copy, message) == carry_out(original, message)
        assert copy.take_notices() == original.take_notices()
        assert content(copy) == content(original)


def test_what_changes_after_the_copy_was_begun_is_not_in_it() -> None:
    original = empty_store(1 << 20)
    put(original, "a", [0, 1, 2], 0)
    expected = content(original)
    made = empty_store(1 << 20)

    copy = StoreCopy(original)
    original.drop_batch("a")
    put(original, "b", [0, 3], 0)
    for chunk, buffers in copy.chunks(50):
        add_chunk(made, chunk, memoryview(b"".join(buffers)))

    assert content(made) == expected
    assert original.slabs.retained_bytes > 0
    assert copy.release() is True
    assert original.slabs.retained_bytes == 0


def test_chunks_are_as_small_as_their_largest_row() -> None:
    store = empty_store(1 << 20)
    put(store, "a", [0, 1, 2, 3], 0)

    sizes = [sum(map(len, buffers)) for _, buffers in StoreCopy(store).chunks(64)]

    assert len(sizes) > 3
    assert max(sizes) <= 64


def test_a_cleared_store_is_as_new() -> None:
    store = empty_store(6_000)
    put(store, "a", [0, 1], 0)
    write(store, "generate", [("a", 0, 0)], 7)

    clear(store)

    assert content(store) == content(empty_store(6_000))
    assert put(store, "a", [0, 1], 0) == 4


BATCH = {
    "name": "a",
    "total": 2,
    "dropped": False,
    "states": ["reward", "update"],
    "shared": [],
    "formats": {},
    "leases": ["l"],
}
ONE = {"batch": "a", "names": {"text": b"g", "ends": b"\x01\0\0\0"}}
GROUPS = {**ONE, "sizes": pack([2]), "indexes": pack([0]), "charges": pack([1])}
ENDS = b"\x01\0\0\0\x02\0\0\0"
ROWS = {
    "batch": "a",
    "names": {"text": b"xy", "ends": ENDS},
    **{name: pack([0, 0]) for name in ("groups", "gone", "versions", "charges", "num_bytes")},
    "acks": {"reward": pack([1, 0])},
}
COLUMN = {
    "name": "c",
    "dtype": "uint8",
    "tail": [],
    "lengths": pack([1, 2]),
    "sums": pack([1, 2]),
}
SLAB = {
    "batch": "a",
    "source": "reward",
    "places": pack([0, 1]),
    "columns": [COLUMN],
}


def chunk_of(**parts: Any) -> Chunk:
    return read(Chunk, pack_value({name: [part] for name, part in parts.items()}))


def test_a_chunk_may_hold_all_parts() -> None:
    store = empty_store(6_000)

    add_chunk(
        store,
        chunk_of(batches=BATCH, groups=GROUPS, rows=ROWS, slabs=SLAB),
        memoryview(b"abc"),
    )

    (found,) = store.batches["a"].columns.live_runs()
    assert found[0] == "reward"
    assert live_uids(store) == ["x", "y"]
    assert store.unacknowledged() == {"generate": 0, "reward": 1, "update": 2}


@pytest.mark.parametrize(
    "parts",
    [
        {"batches": {**BATCH, "formats": {"x": ["object", []]}}},
        {"groups": {**GROUPS, "batch": "unknown"}},
        {"groups": {**GROUPS, "sizes": pack([1, 2])}},
        {"groups": {**GROUPS, "charges": pack([-1])}},
        {"rows": {**ROWS, "batch": "unknown"}},
        {"rows": ROWS},
        {"groups": GROUPS, "rows": {**ROWS, "groups": pack([0, 1])}},
        {"groups": GROUPS, "rows": {**ROWS, "groups": pack([-1, 0])}},
        {"groups": GROUPS, "rows": {**ROWS, "versions": pack([0])}},
        {"groups": GROUPS, "rows": {**ROWS, "acks": {"critic": pack([1, 1])}}},
        {
            "groups": GROUPS,
            "rows": {**ROWS, "names": {"text": b"xx", "ends": ENDS}},
        },
        {"groups": GROUPS, "rows": ROWS, "slabs": {**SLAB, "places": pack([0, 2])}},
        {"groups": GROUPS, "rows": ROWS, "slabs": {**SLAB, "places": pack([0, 0])}},
        {"groups": GROUPS, "rows": ROWS, "slabs": {**SLAB, "places": pack([0])}},
        {"groups": GROUPS, "rows": ROWS, "slabs": {**SLAB, "columns": []}},
        {"groups": GROUPS, "rows": ROWS, "slabs": {**SLAB, "columns": [{**COLUMN, "sums": b""}]}},
        {
            "groups": GROUPS,
            "rows": ROWS,
            "slabs": {**SLAB, "columns": [{**COLUMN, "sums": pack([1])}]},
        },
        {"slabs": {**SLAB, "batch": "unknown"}},
    ],
)
def test_chunks_that_lie_are_malformed(parts) -> None:
    store = empty_store(6_000)
    add_chunk(store, chunk_of(batches=BATCH), memoryview(b""))

    with pytest.raises(MalformedFrame):
        add_chunk(store, chunk_of(**parts), memoryview(b"abc" if "slabs" in parts else b""))
