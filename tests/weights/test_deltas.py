"""Deltas of bits: whatever changes, both ends hold the same bits, and small changes take few bytes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.weights.reshard import deltas
from rljob_runtime.weights.reshard.deltas import decode, encode, payload_bytes


def bits(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int16).view(torch.uint8)


@given(
    size=st.integers(1, 900),
    changes=st.dictionaries(st.integers(0, 899), st.integers(-(2**15), 2**15 - 1), max_size=60),
    seed=st.integers(0, 2**31),
    chunk=st.sampled_from([7, 64, 2**24]),
)
@settings(max_examples=150, deadline=None)
def test_any_change_of_any_slice_arrives_bit_by_bit(size, changes, seed, chunk):
    drawn = torch.Generator().manual_seed(seed)
    last = torch.randint(-(2**15), 2**15, (size,), dtype=torch.int16, generator=drawn)
    new = last.clone()
    for at, move in changes.items():
        new[at % size] = move

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "CHUNK_ITEMS", chunk)
        delta = encode(new.view(torch.uint8), last.view(torch.uint8))

    if delta is not None:
        held = last.clone().view(torch.uint8)
        decode(delta, held)
        assert held.view(torch.int16).equal(new)
        assert len(delta.payload) == payload_bytes(*delta[1:]) < new.nbytes
        assert delta.changes == int((new != last).sum())


@pytest.mark.parametrize(
    ("last", "new", "size"),
    [
        ([5] * 400, [5] * 126 + [6] + [5] * 273, 1),
        ([5] * 400, [5] * 127 + [4] + [5] * 272, 3),
        ([5] * 400, [5] * 255 + [132] + [5] * 144, 3),
        ([5] * 400, [5] * 256 + [6] + [5] * 143, 7),
        ([5] * 400, [133] + [5] * 399, 7),
        ([-(2**15)] * 400, [2**15 - 1] + [-(2**15)] * 399, 1),
        ([0] * 400, [-(2**15)] + [0] * 399, 7),
        ([5] * 400, [5] * 400, 0),
    ],
    ids=["near", "down, far", "middling", "gap", "move", "around", "the longest move", "nothing"],
)
def test_a_change_takes_a_byte_or_what_its_gap_and_move_need(last, new, size):
    delta, held = encode(bits(new), bits(last)), bits(last)

    assert delta is not None
    decode(delta, held)
    assert len(delta.payload) == size
    assert held.equal(bits(new))


def test_where_most_changes_the_whole_slice_is_shorter():
    last = torch.arange(1000, dtype=torch.int16)

    assert encode((last + 1000).view(torch.uint8), last.view(torch.uint8)) is None
    assert encode((last + 1).view(torch.uint8), last.view(torch.uint8)) is None


def test_a_step_of_bfloat16_at_a_learning_rate_of_rl_takes_less_than_a_tenth():
    drawn = torch.Generator().manual_seed(0)
    master = 0.02 * torch.randn(100_000, generator=drawn)
    stepped = master - 1e-6 * torch.randn(100_000, generator=drawn).sign()

    delta = encode(stepped.bfloat16().view(torch.uint8), master.bfloat16().view(torch.uint8))

    assert delta is not None
    assert 0.01 < delta.changes / 100_000 < 0.06
    assert len(delta.payload) < 0.04 * 200_000
