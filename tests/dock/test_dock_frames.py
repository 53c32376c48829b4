"""Frames and columns on the wire: round trips, and whatever bytes come in."""

import itertools
import math
import struct

import numpy as np
import pytest
from dock_conversations import plain
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stored_columns import encoded

from rljob_runtime.dock.columns import DTYPES, Ragged
from rljob_runtime.dock.wire.encoding import decode_chunked_column, decode_columns
from rljob_runtime.dock.wire.frames import (
    MalformedFrame,
    pack,
    pack_head,
    pack_value,
    read,
    read_head,
)
from rljob_runtime.dock.wire.messages import ColumnHead, Inspection, Notices, Read, Snapshot

ITEMS = st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=2)


@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    tail=st.lists(st.integers(0, 3), max_size=2),
    lengths=st.lists(st.integers(0, 5), max_size=6),
)
@settings(max_examples=100)
def test_columns_survive_the_wire_bit_for_bit(dtype, tail, lengths) -> None:
    rng = np.random.default_rng(0)
    total = sum(lengths)
    values = rng.integers(0, 2, size=(total, *tail)).astype(dtype)
    column = Ragged(values=values, lengths=np.asarray(lengths, dtype=np.int64))
    other = Ragged.from_rows([np.arange(3, dtype=np.uint8)])

    heads, payload = encoded({"a": column, "b": other})
    back = decode_columns(heads, memoryview(payload))

    assert back["a"].values.dtype == values.dtype
    assert back["a"].values.shape == values.shape
    assert np.array_equal(back["a"].values, values)
    assert back["a"].lengths.tolist() == lengths
    assert back["b"].row(0).tolist() == [0, 1, 2]


@given(
    tail=st.lists(st.integers(1, 3), max_size=2),
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 300), max_size=4),
)
@settings(max_examples=200)
def test_rows_are_found_again_however_their_bytes_are_cut(tail, lengths, cuts) -> None:
    values = np.arange(sum(lengths) * math.prod(tail), dtype=np.int32)
    values = values.reshape(sum(lengths), *tail)
    assume(values.size)
    heads, payload = encoded(
        {"a": Ragged(values=values, lengths=np.asarray(lengths, dtype=np.int64))}
    )
    data = memoryview(payload)[: values.nbytes]
    ends = sorted(4 * (cut % (len(data) // 4 + 1)) for cut in cuts)
    parts = [data[a:b] for a, b in itertools.pairwise([0, *ends, len(data)])]

    found = decode_chunked_column(heads[0], parts)

    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    expected = [values[s : s + n].tolist() for s, n in zip(starts, lengths, strict=True)]
    assert [row.tolist() for row in found.rows()] == expected
    assert np.array_equal(np.concatenate(found.arrays), values)
    assert found.lengths.tolist() == lengths


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "object"},
        {"dtype": "float64"},
        {"tail": [-1]},
        {"tail": "x"},
        {"lengths": b"123"},
        {"lengths": struct.pack("<q", -1)},
        {"lengths": struct.pack("<2q", 2**62, 2**62)},
        {"lengths": struct.pack("<q", 1 << 40)},
        {"lengths": struct.pack("<q", 1)},
        {"name": 3},
    ],
)
def test_columns_that_lie_are_malformed(change) -> None:
    heads, payload = encoded({"a": Ragged.from_rows([np.zeros(100, dtype=np.int32)])})
    lie = pack_value({**plain(heads[0]), **change})

    with pytest.raises(MalformedFrame):
        decode_columns([read(ColumnHead, lie)], memoryview(payload))


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_a_header_or_malformed(body: bytes) -> None:
    try:
        message = read(Inspection, body)
    except MalformedFrame:
        return
    assert isinstance(message.told, dict)


@given(
    st.dictionaries(
        st.sampled_from(["batches", "rows", "columns", "acks", "drops", "epoch"]),
        st.lists(st.lists(ITEMS, max_size=9), max_size=3),
    )
)
@settings(max_examples=200)
def test_any_notices_are_decoded_or_malformed(header) -> None:
    for form in (Notices, Snapshot):
        try:
            read(form, pack_value(header))
        except MalformedFrame:
            continue


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (pack_head(1, 0, 0, magic=b"HTTP"), "no peer of the dock"),
        (pack_head(1, 0, 0, version=9), "protocol version 9; this side speaks 6"),
        (pack_head(99, 0, 0), "kind 99 is unknown"),
        (pack_head(1, 1 << 31, 0), "over the limit"),
        (pack_head(1, 0, 1 << 60), "over the limit"),
    ],
)
def test_a_wrong_head_says_what_is_wrong(head: bytes, message: str) -> None:
    with pytest.raises(MalformedFrame, match=message):
        read_head(head, trusted=True)


def test_a_stranger_may_send_little() -> None:
    with pytest.raises(MalformedFrame, match="before the token was shown"):
        read_head(pack_head(1, 5000, 0), trusted=False)


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(ValueError, match="use fewer rows a call"):
        pack(Read(uids=[], columns=[]), 5 << 30)


def test_columns_refuse_what_they_cannot_hold() -> None:
    with pytest.raises(ValueError, match="dtype float64 cannot be a column"):
        Ragged.from_rows([np.zeros(2)])
    with pytest.raises(ValueError, match="lengths of 1 rows sum to 3"):
        Ragged(values=np.zeros(2, dtype=np.int32), lengths=np.asarray([3]))
    with pytest.raises(ValueError, match="differ in type or trailing shape"):
        Ragged.from_rows([np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int64)])


def test_rows_can_be_taken_in_any_order() -> None:
    column = Ragged.from_rows([np.arange(n, dtype=np.int32) for n in (2, 0, 3)])

    taken = column.take([2, 0, 2])

    assert [row.tolist() for row in taken.rows()] == [[0, 1, 2], [0, 1], [0, 1, 2]]
    assert len(column.take([])) == 0


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\x81\xa1z" + b"\x91" * 100_000 + b"\xc0", "recursion"),
        (b"\x81\xa4uids\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x81\xa4uids\x91\xa2\xff\xfe", "utf-8"),
        (b"\x81\x01\x02", "Expected `str`, got `int`"),
        (pack_value({"uids": ["a", 1], "columns": []}), r"got `int` - at `\$\.uids\[1\]`"),
        (pack_value({"uids": [], "more": 1}), "missing required field `columns`"),
    ],
)
def test_a_malformed_header_names_message_and_problem(body: bytes, problem: str) -> None:
    with pytest.raises(MalformedFrame, match=f"Read: .*{problem}"):
        read(Read, body)
