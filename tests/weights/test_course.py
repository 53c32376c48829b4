"""What is told of a device's memory through a reshard."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.weights.reshard_state import memory_timeline, thinned

KIND = MemoryKind.UPDATE_WEIGHTS


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300), st.integers(3, 70))
def test_a_long_course_keeps_its_ends_and_its_fullest_moment(sizes: list[int], most: int) -> None:
    course = [(float(when), {KIND: size}) for when, size in enumerate(sizes)]

    kept = thinned(course, most)

    assert len(kept) <= most
    assert (kept[0], kept[-1]) == (course[0], course[-1])
    assert max(held[KIND] for _, held in kept) == max(sizes)
    assert [when for when, _ in kept] == sorted({when for when, _ in kept})


def test_what_has_no_name_of_its_own_is_told_together() -> None:
    moments = [
        (0.0, {MemoryKind.UPDATE_WEIGHTS: 8, MemoryKind.OPTIMIZER: 16}),
        (0.5, {MemoryKind.ROLLOUT_WEIGHTS: 4, MemoryKind.KV_CACHE: 2, MemoryKind.BUFFERS: 1}),
    ]

    assert memory_timeline(moments) == {
        "seconds": [0.0, 0.5],
        "update_bytes": [8.0, 0.0],
        "rollout_bytes": [0.0, 4.0],
        "buffer_bytes": [0.0, 1.0],
        "cache_bytes": [0.0, 2.0],
        "other_bytes": [16, 0],
    }
