"""Columns as torch tensors and TensorDicts: the same memory, the same bits, both ways."""

import numpy as np
import pytest
import torch
from forked_docks import ForkedDock
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rljob_runtime.dock.columns import DTYPES, Ragged
from rljob_runtime.dock.graph import State
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.samples.tensors import (
    array_of,
    columns_of,
    nested_of,
    ragged_of,
    rows_of,
    tensor_of,
    tensordict_of,
)


def column(lengths: list[int], dtype: str = "float32", tail: tuple[int, ...] = ()) -> Ragged:
    count = sum(lengths)
    size = (count, *tail)
    values = np.arange(int(np.prod(size)), dtype=np.int32).reshape(size) % 100
    return Ragged(values=values.astype(DTYPES[dtype]), lengths=np.asarray(lengths, dtype=np.int64))


def same(a: Ragged, b: Ragged) -> bool:
    return (
        a.values.dtype == b.values.dtype
        and a.values.shape == b.values.shape
        and a.values.tobytes() == b.values.tobytes()
        and a.lengths.tolist() == b.lengths.tolist()
    )


@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    tail=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6),
)
@settings(max_examples=100)
def test_a_column_of_any_type_comes_back_from_torch_bit_for_bit(dtype, tail, lengths) -> None:
    original = column(lengths, dtype, tail)

    nested = nested_of(original)

    assert same(ragged_of(nested), original)
    assert nested.dtype == getattr(torch, dtype)
    for i, row in enumerate(nested.unbind()):
        assert torch.equal(row, tensor_of(original.row(i)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64"])
def test_nothing_is_copied(dtype) -> None:
    original = column([2, 3], dtype)

    tensor_of(original.values)[4] = 77
    nested_of(original).values()[0] = 55
    array_of(tensor_of(original.values))[1] = 33

    assert original.values.astype(np.int64).tolist() == [55, 33, 2, 3, 77]


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_memory_that_is_read_only_is_shown_as_it_is(dtype) -> None:
    original = column([2, 0, 3], dtype)
    original.values.flags.writeable = False

    rows = rows_of(original)

    assert rows[2].data_ptr() == original.row(2).ctypes.data
    assert [len(row) for row in rows] == [2, 0, 3]
    assert torch.equal(torch.cat(rows), nested_of(original).values())


def test_rows_of_another_type_are_a_copy() -> None:
    original = column([2, 3], "int32")

    rows = rows_of(original, torch.int64)
    original.values[:] = 0

    assert [row.tolist() for row in rows] == [[0, 1], [2, 3, 4]]
    assert rows[0].dtype == torch.int64


def test_bfloat16_means_the_same_number_on_both_sides() -> None:
    numbers = torch.tensor([1.0, -2.5, 3.0e38, float("inf")], dtype=torch.bfloat16)

    array = array_of(numbers)

    assert array.astype(np.float32).tolist() == numbers.float().tolist()


def test_dense_tensors_are_rows_of_equal_length_and_vectors_one_value_a_row() -> None:
    dense = torch.arange(12).reshape(2, 3, 2)
    rewards = torch.tensor([0.5, 1.5])

    assert [row.tolist() for row in ragged_of(dense).rows()] == dense.tolist()
    assert [row.tolist() for row in ragged_of(rewards).rows()] == [[0.5], [1.5]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_tensor_that_no_column_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="float64 cannot be a column"):
        ragged_of(torch.zeros(2, dtype=torch.float64))
    strided = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)])
    with pytest.raises(ValueError, match="nested_tensor_from_jagged"):
        ragged_of(strided)


def test_a_tensordict_goes_through_the_dock_and_comes_back() -> None:
    states = [State(name="learn", needs=("tokens", "hidden.last"))]
    tokens, hidden = column([3, 0, 2], "int32"), column([1, 1, 1], "bfloat16", (4,))
    batch = tensordict_of({"tokens": tokens})
    batch["hidden", "last"] = nested_of(hidden)
    sent = columns_of(batch)
    rows = [
        NewRow(
            uid=f"b/{i}",
            group=f"b/{i}",
            group_index=i,
            columns={name: sent[name].row(i) for name in sent},
        )
        for i in range(3)
    ]

    with ForkedDock(states) as dock:
        dock.client("feed", "feeder").put_rows("b", rows, total=3)
        client = dock.client("learn", "learner")
        claim = client.claim("b", share=(0, 1), timeout_seconds=20)
        with client.view(claim.rows, ["tokens", "hidden.last"]) as columns:
            seen = tensordict_of(columns)
            assert isinstance(seen, TensorDict)
            assert seen.batch_size == torch.Size([3])
            assert seen["hidden.last"].dtype == torch.bfloat16
            back = {name: ragged_of(seen[name].clone()) for name in ("tokens", "hidden.last")}
        client.acknowledge(claim.rows)

    assert same(back["tokens"], tokens)
    assert same(back["hidden.last"], hidden)
