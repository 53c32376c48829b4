"""Room in the arena and cells in memory: no overlap, no waste, and pinned bytes that stay."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_columns import stored

from rljob_runtime.dock.columns import PackedColumn, Ragged
from rljob_runtime.dock.warehouse.arena import ALIGNMENT_BYTES, Arena
from rljob_runtime.dock.warehouse.slabs import (
    WORD_BYTES,
    NoRoom,
    SlabMemory,
    SlabRun,
    merge_adjacent,
    slab_bytes,
)
from rljob_runtime.dock.wire.memory import WarehouseMemory

SIZE = 4096


def size_of(spans: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "free", "free part"]), st.integers(0, 1500)),
        max_size=60,
    )
)
@settings(max_examples=300, deadline=None)
def test_spans_never_overlap_and_every_free_byte_can_be_had(steps) -> None:
    arena, taken = Arena(SIZE), []

    for what, number in steps:
        if what == "take" and number <= arena.free_bytes:
            spans = arena.allocate(number)
            assert size_of(spans) == number
            taken += spans
        elif what != "take" and taken:
            start, end = taken.pop(number % len(taken))
            middle = (start + end) // 2 if what == "free part" else end
            if middle == start:
                middle = end
            arena.free((start, middle))
            if middle < end:
                taken.append((middle, end))
        assert arena.free_bytes == SIZE - size_of(taken)
        everything = sorted([*taken, *arena.holes()])
        assert everything[0][0] == 0 and everything[-1][1] == SIZE
        assert all(a[1] == b[0] for a, b in itertools.pairwise(everything))
        assert all(a[1] < b[0] for a, b in itertools.pairwise(arena.holes())), "two holes touch"

    rest = arena.allocate(arena.free_bytes)
    for span in [*taken, *rest]:
        arena.free(span)
    assert arena.holes() == [(0, SIZE)]


def test_a_large_enough_hole_gives_one_aligned_span() -> None:
    arena = Arena(SIZE)

    first, second = arena.allocate(10), arena.allocate(100)

    assert first == [(0, 10)]
    assert second == [(ALIGNMENT_BYTES, ALIGNMENT_BYTES + 100)]


def test_a_hole_of_just_the_size_is_used_again() -> None:
    arena = Arena(SIZE)
    first, _ = arena.allocate(128), arena.allocate(128)

    arena.free(first[0])

    assert arena.allocate(128) == first


def test_thousands_of_steps_do_not_spread_over_the_arena() -> None:
    rng = np.random.default_rng(0)
    arena, live = Arena(1 << 20), []

    for _ in range(5000):
        live.append(arena.allocate(int(rng.integers(1, 8000))))
        while len(live) > 30 or arena.free_bytes < 1 << 19:
            for span in live.pop(int(rng.integers(0, len(live)))):
                arena.free(span)

    assert all(len(spans) == 1 for spans in live)
    assert arena.high_water < 3 << 18


def test_bytes_are_not_freed_twice() -> None:
    arena = Arena(SIZE)
    (span,) = arena.allocate(100)
    arena.free(span)

    with pytest.raises(AssertionError, match="is free already"):
        arena.free((50, 60))
    with pytest.raises(AssertionError, match="is not in the arena"):
        arena.free((SIZE, SIZE + 1))


@pytest.fixture(params=[True, False], ids=["memfd", "anonymous"])
def slabs(request: pytest.FixtureRequest) -> Iterator[SlabMemory]:
    memory = WarehouseMemory(SIZE, shared=request.param)
    yield SlabMemory(memory)
    memory.close()


def column(*rows: list[int]) -> PackedColumn:
    return stored(Ragged.from_rows([np.asarray(row, dtype=np.int32) for row in rows]))


def store(slabs: SlabMemory, *rows: list[int]) -> list[SlabRun]:
    """One message with these rows; each by itself."""
    slab = slabs.store({"a": column(*rows)})
    return [SlabRun(slab, i, i + 1) for i in range(len(rows))]


def values(slabs: SlabMemory, run: SlabRun) -> list[int]:
    data = b"".join(slabs.memory.view[start:end] for start, end in run.spans("a"))
    return np.frombuffer(data, dtype=np.int32).tolist()


def test_rows_of_a_column_lie_behind_each_other(slabs) -> None:
    rows = store(slabs, [1], [2, 3], [], [4])

    assert [values(slabs, row) for row in rows] == [[1], [2, 3], [], [4]]
    assert merge_adjacent(span for row in rows for span in row.spans("a")) == [(0, 16)]


def test_columns_of_a_message_lie_in_one_piece_each_at_a_word(slabs) -> None:
    slab = slabs.store({"a": column([1], [2]), "b": column([3], []), "c": column([], [4, 5, 6])})

    assert [SlabRun(slab, 0, 2).spans(name) for name in "abc"] == [[(0, 8)], [(8, 12)], [(16, 28)]]
    assert (
        slabs.arena.free_bytes
        == SIZE - 32
        == SIZE
        - slab_bytes({"a": column([1], [2]), "b": column([3], []), "c": column([], [4, 5, 6])})
    )


def test_a_fragmented_arena_holds_all_that_is_free(slabs) -> None:
    blocks = [row for i in range(10) for row in store(slabs, [i] * 100)]
    slabs.free(blocks[::2])
    rows = [list(range(200)), list(range(300))]

    slabs.require(2000)
    stored = store(slabs, *rows)

    assert len(stored[1].spans("a")) > 1
    assert [values(slabs, row) for row in stored] == rows
    assert [values(slabs, row) for row in blocks[1::2]] == [[i] * 100 for i in range(1, 10, 2)]


def test_rows_that_are_gone_give_their_bytes_back_where_room_is_short(slabs) -> None:
    rows = store(slabs, [1] * 100, [2] * 100, [3] * 100)
    slabs.free([rows[0], rows[2]])
    kept = slabs.arena.free_bytes

    slabs.require(SIZE - 400)

    assert kept == SIZE - 1200
    assert slabs.arena.free_bytes == SIZE - 400
    assert values(slabs, rows[1]) == [2] * 100
    with pytest.raises(NoRoom):
        slabs.require(SIZE - 399)
    slabs.free([rows[1]])
    assert slabs.arena.holes() == [(0, SIZE)]


def test_pinned_bytes_outlive_their_row(slabs) -> None:
    rows = store(slabs, list(range(1000)))
    slabs.pin(rows)
    slabs.pin(rows)
    slabs.free(rows)

    with pytest.raises(NoRoom):
        slabs.require(SIZE)
    assert slabs.retained_bytes == 4000
    slabs.unpin(rows)
    with pytest.raises(NoRoom):
        slabs.require(SIZE)
    assert values(slabs, rows[0]) == list(range(1000))
    assert slabs.unpin(rows)
    assert (slabs.retained_bytes, slabs.arena.free_bytes) == (0, SIZE)


@given(
    st.lists(
        st.tuples(st.sampled_from(["store", "free", "pin", "unpin"]), st.integers(0, 300)),
        max_size=60,
    ),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_what_is_there_or_pinned_never_changes(steps, eager) -> None:
    """eager: room is always short."""
    slabs = SlabMemory(WarehouseMemory(SIZE))
    live, pinned, expected = list[SlabRun](), list[SlabRun](), dict[SlabRun, list[int]]()

    for stamp, (what, number) in enumerate(steps):
        lengths = [number, 0, 2 * number]
        rows = [[stamp] * length for length in lengths]
        if what == "store" and slab_bytes({"a": column(*rows)}) <= slabs.arena.free_bytes:
            for run, row in zip(store(slabs, *rows), rows, strict=True):
                expected[run] = row
                live.append(run)
        elif what == "free" and live:
            slabs.free([live.pop(number % len(live))])
        elif what == "pin" and live:
            pinned.append(live[number % len(live)])
            slabs.pin(pinned[-1:])
        elif what == "unpin" and pinned:
            slabs.unpin([pinned.pop(number % len(pinned))])
        if eager:
            slabs.reclaim()
        kept = {*live, *pinned}
        assert all(values(slabs, run) == expected[run] for run in kept)
        taken = SIZE - slabs.arena.free_bytes - sum(4 * len(expected[run]) for run in kept)
        assert taken >= 0
        assert not eager or taken < WORD_BYTES * len({run.slab for run in kept}) + 1
        gone = sum(4 * len(expected[run]) for run in {*pinned} - {*live})
        assert slabs.retained_bytes == gone


def test_memory_is_made_present_up_to_where_it_is_used() -> None:
    memory = WarehouseMemory(8 << 20, shared=True)

    memory.populate(100)

    assert memory.populated_bytes == 1 << 20
    memory.populate(64 << 20)
    assert memory.populated_bytes == 8 << 20
    memory.close()
    assert not memory.shareable
