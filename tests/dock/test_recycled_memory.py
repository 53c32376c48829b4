"""Memory of reads is used again, and never while somebody looks at it."""

import gc
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.dock import recycled
from rljob_runtime.dock.recycled import LEAST_BYTES, Recycler, concatenate

MIB = 1 << 20


def place(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_once_the_last_view_of_it_is_gone() -> None:
    recycler = Recycler()
    array = recycler.empty(4 * MIB)
    first = place(array)
    view = array.view(np.int64)[8:].reshape(-1, 8)[1:]
    tensor = torch.from_numpy(view[:2])
    buffer = array[:64].data

    del array
    assert place(recycler.empty(4 * MIB)) != first
    del view
    assert place(recycler.empty(4 * MIB)) != first
    del tensor
    assert place(recycler.empty(4 * MIB)) != first
    del buffer
    gc.collect()
    again = [recycler.empty(4 * MIB) for _ in range(2)]
    assert first in map(place, again)


def test_small_arrays_are_the_allocators() -> None:
    recycler = Recycler()
    recycler.empty(LEAST_BYTES - 1)
    assert recycler.retained_bytes == 0


def test_what_is_kept_is_no_more_than_was_in_use_at_one_time() -> None:
    recycler = Recycler()
    for size in (8 * MIB, 3 * MIB, 5 * MIB, MIB):
        recycler.empty(size)
    assert recycler.retained_bytes <= 8 * MIB

    both = [recycler.empty(8 * MIB), recycler.empty(8 * MIB)]
    assert recycler.retained_bytes == 0
    both.clear()
    assert recycler.retained_bytes == 16 * MIB


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycled, "MOST_RETAINED_BYTES", 6 * MIB)
    recycler = Recycler()
    arrays = [recycler.empty(4 * MIB) for _ in range(4)]
    arrays.clear()
    recycler.empty(MIB)
    assert recycler.retained_bytes <= 6 * MIB + MIB


def test_a_small_read_does_not_take_a_large_block() -> None:
    recycler = Recycler()
    first = place(recycler.empty(64 * MIB))
    assert place(recycler.empty(2 * MIB)) != first


@given(
    st.lists(st.tuples(st.integers(MIB, 4 * MIB), st.integers(0, 3)), max_size=30),
    st.randoms(use_true_random=False),
)
def test_no_array_changes_while_it_is_held(steps: list[tuple[int, int]], random: Random) -> None:
    recycler = Recycler()
    held: list[tuple[np.ndarray, int]] = []
    for number, (size, dropped) in enumerate(steps):
        array = recycler.empty(size)
        array[:: size // 8] = number
        held.append((array[:: size // 8], number))
        for _ in range(min(dropped, len(held))):
            held.pop(random.randrange(len(held)))
    assert all((array == number % 256).all() for array, number in held)


def test_threads_never_get_the_same_memory() -> None:
    recycler = Recycler()

    def take_many(thread: int) -> bool:
        whole = True
        for _ in range(300):
            array = recycler.empty(MIB)
            array[::4096] = thread
            whole &= bool((array[::4096] == thread).all())
        return whole

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(take_many, range(4)))


def test_joined_arrays_are_their_concatenation() -> None:
    generator = np.random.default_rng(0)
    small = [generator.random((n, 3), dtype=np.float32) for n in (2, 0, 5)]
    large = [generator.integers(0, 9, (n, 2)) for n in (50_000, 30_000)]

    for arrays in (small, large):
        copy = concatenate(arrays)
        np.testing.assert_array_equal(copy, np.concatenate(arrays))
        assert copy.flags.writeable
        assert not any(np.shares_memory(copy, array) for array in arrays)
