"""A store made of another one's chunks answers every later message as that one does."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_runtime.dock.columns import Packed, Ragged
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.warehouse.cells import NoRoom
from rljob_runtime.dock.warehouse.notices import snapshot_for
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_copy import StoreCopy, add_chunk, clear
from rljob_runtime.dock.wire.frames import MalformedFrame, pack_value, read
from rljob_runtime.dock.wire.messages import Chunk, RowHead
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
        RowHead(
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
        heads=heads,
        columns={
            "seed": Packed.of(Ragged.from_rows([np.full((1, 2), 3, dtype=np.int64) for _ in heads]))
        },
        group_columns={
            "prompt": Packed.of(Ragged.from_rows([np.arange(g, dtype=np.int32) for g in groups]))
        },
    )


def write(store: WarehouseStore, state: str, rows: list[tuple], length: int) -> object:
    uids = [f"{batch}/{g}/{s}" for batch, g, s in rows]
    names = GRAPH.state(state).writes
    columns = {
        name: Packed.of(
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
            store.rows,
            state=state,
            needs=frozenset(GRAPH.state(state).needs),
            epoch="",
        )
        for state in GRAPH.names
    ]
    bytes_of = {
        (uid, name): (cell.length, cell.data)
        for uid, row in store.rows.items()
        for name, cell in [
            *row.cells.items(),
            *store.batches[row.batch].groups[row.head.group].cells.items(),
        ]
    }
    taken = store.cells.arena.num_bytes - store.cells.arena.free_bytes
    return snapshots, bytes_of, store.charged_bytes, taken, store.unacknowledged()


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
    assert original.cells.retained_bytes > 0
    assert copy.release() is True
    assert original.cells.retained_bytes == 0


def test_chunks_are_as_small_as_their_largest_row() -> None:
    store = empty_store(1 << 20)
    put(store, "a", [0, 1, 2, 3], 0)

    sizes = [sum(map(len, buffers)) for _, buffers in StoreCopy(store).chunks(64)]

    assert len(sizes) > 3
    assert max(sizes) <= 64


def test_rows_that_are_gone_share_what_is_kept_of_them_in_a_copy_too() -> None:
    store = empty_store(1 << 20)
    put(store, "c", [0, 1], 0)
    rows = [("c", group, sample) for group in (0, 1) for sample in range(SAMPLES)]
    for state in GRAPH.names[:2]:
        write(store, state, rows, 7)

    gone = [each.batches["c"].freed for each in (store, copy_of(store, 50))]

    assert [len(freed) for freed in gone] == [len(rows)] * 2
    assert [len({id(acks) for acks in freed.values()}) for freed in gone] == [1, 1]


def test_a_cleared_store_is_as_new() -> None:
    store = empty_store(6_000)
    put(store, "a", [0, 1], 0)
    write(store, "generate", [("a", 0, 0)], 7)

    clear(store)

    assert content(store) == content(empty_store(6_000))
    assert put(store, "a", [0, 1], 0) == 4


@pytest.mark.parametrize(
    "header",
    [
        {"batches": [["a"]]},
        {"batches": [["a", 1, 1, False, 7, [], [], {}]]},
        {"batches": [["a", 1, 1, False, {}, [], [], {"x": ["object", []]}]]},
        {"freed": [["unknown", "uid", {}]]},
        {"groups": [["unknown", "group", 1]]},
        {"columns": [{"name": "x", "items": b"", "lengths": b"", "sizes": b"1"}]},
        {"groups": [["a", "g", 1]], "columns": [{"name": "x", "items": b"", "sizes": bytes(8)}]},
        {
            "groups": [["a", "g", 1]],
            "columns": [{"name": "x", "items": bytes(8), "lengths": b"", "sizes": bytes(8)}],
        },
        {"rows": [["a", ["uid"], 1, 1, 1, {}]]},
        {"rows": [["a", ["uid", "no group", 0, 1, 0, 0, 0], 1, 1, 1, {}]]},
    ],
)
def test_chunks_that_lie_are_malformed(header) -> None:
    store = empty_store(6_000)
    known = {"batches": [["a", 1, 1, False, {}, [], [], {}]]}
    add_chunk(store, read(Chunk, pack_value(known)), memoryview(b""))

    with pytest.raises(MalformedFrame):
        add_chunk(store, read(Chunk, pack_value(header)), memoryview(b""))
