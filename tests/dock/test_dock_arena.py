"""Room in the arena and cells in memory: no overlap, no waste, and pinned bytes that stay."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.dock.columns import Packed, Ragged
from rljob_runtime.dock.warehouse.arena import ALIGNMENT_BYTES, Arena
from rljob_runtime.dock.warehouse.cells import CellMemory, NoRoom, runs_of
from rljob_runtime.dock.wire.memory import Memory

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
def cells(request: pytest.FixtureRequest) -> Iterator[CellMemory]:
    memory = Memory(SIZE, shared=request.param)
    yield CellMemory(memory)
    memory.close()


def column(*rows: list[int]) -> Packed:
    return Packed.of(Ragged.from_rows([np.asarray(row, dtype=np.int32) for row in rows]))


def values(cell) -> list[int]:
    return np.frombuffer(cell.data, dtype=np.int32).tolist()


def test_rows_of_a_column_lie_behind_each_other(cells) -> None:
    stored = cells.store({"a": column([1], [2, 3], [], [4])}, range(4))

    assert [values(row["a"]) for row in stored] == [[1], [2, 3], [], [4]]
    assert runs_of(row["a"] for row in stored) == [(0, 16)]


def test_only_the_rows_that_are_asked_for_are_stored(cells) -> None:
    stored = cells.store({"a": column([1], [2, 3], [4])}, [0, 2])

    assert [values(row["a"]) for row in stored] == [[1], [4]]
    assert cells.arena.free_bytes == SIZE - 8


def test_a_fragmented_arena_holds_all_that_is_free(cells) -> None:
    blocks = cells.store({"a": column(*[[i] * 100 for i in range(10)])}, range(10))
    cells.free(row["a"] for row in blocks[::2])
    rows = [list(range(200)), list(range(300))]

    cells.require(2000)
    stored = cells.store({"a": column(*rows)}, range(2))

    assert len(stored[1]["a"].spans) > 1
    assert [values(row["a"]) for row in stored] == rows
    assert [values(row["a"]) for row in blocks[1::2]] == [[i] * 100 for i in range(1, 10, 2)]


def test_pinned_bytes_outlive_their_row(cells) -> None:
    (row,) = cells.store({"a": column(list(range(1000)))}, [0])
    cells.pin(row.values())
    cells.pin(row.values())
    cells.free(row.values())

    with pytest.raises(NoRoom):
        cells.require(SIZE)
    assert cells.retained_bytes == 4000
    assert not cells.unpin(row.values())
    assert values(row["a"]) == list(range(1000))
    assert cells.unpin(row.values())
    assert (cells.retained_bytes, cells.arena.free_bytes) == (0, SIZE)


@given(
    st.lists(
        st.tuples(st.sampled_from(["store", "free", "pin", "unpin"]), st.integers(0, 300)),
        max_size=60,
    )
)
@settings(max_examples=200, deadline=None)
def test_what_is_there_or_pinned_never_changes(steps) -> None:
    cells = CellMemory(Memory(SIZE))
    live, pinned, expected = [], [], {}

    for stamp, (what, number) in enumerate(steps):
        if what == "store" and 12 * number <= cells.arena.free_bytes:
            lengths = [number, 0, 2 * number]
            stored = cells.store({"a": column(*[[stamp] * n for n in lengths])}, range(3))
            for row, length in zip(stored, lengths, strict=True):
                expected[row["a"]] = [stamp] * length
                live.append(row["a"])
        elif what == "free" and live:
            cells.free([live.pop(number % len(live))])
        elif what == "pin" and live:
            pinned.append(live[number % len(live)])
            cells.pin(pinned[-1:])
        elif what == "unpin" and pinned:
            cells.unpin([pinned.pop(number % len(pinned))])
        kept = {*live, *pinned}
        assert all(values(cell) == expected[cell] for cell in kept)
        bytes_kept = sum(4 * len(expected[cell]) for cell in kept)
        assert cells.arena.free_bytes == SIZE - bytes_kept


def test_memory_is_made_present_up_to_where_it_is_used() -> None:
    memory = Memory(8 << 20, shared=True)

    memory.populate(100)

    assert memory.populated_bytes == 1 << 20
    memory.populate(64 << 20)
    assert memory.populated_bytes == 8 << 20
    memory.close()
    assert not memory.shareable
