"""The warehouse's store: room, formats, duplicates, freeing, refusals."""

import msgspec
import numpy as np
import pytest
from numbered_rows import pack
from stored_columns import stored
from stored_rows import Head, bytes_of, live_uids, new_rows

from rljob_runtime.dock.columns import PackedColumn, Ragged
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.names import pack_names
from rljob_runtime.dock.warehouse.batch_record import ROW_BYTES
from rljob_runtime.dock.warehouse.slabs import NoRoom
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.errors import DockFull, DockLost, DockRefused


def column(*rows: list[int], dtype: str = "int32") -> PackedColumn:
    return stored(Ragged.from_rows([np.asarray(row, dtype=dtype) for row in rows]))


def heads(group: int, samples: int, *, reserve_bytes: int = 0, batch: str = "b") -> list[Head]:
    return [
        Head(
            uid=f"{batch}/{group}/{s}",
            group=f"{batch}/{group}",
            group_index=group,
            group_size=samples,
            sample=s,
            version=0,
            reserve_bytes=reserve_bytes,
        )
        for s in range(samples)
    ]


@pytest.fixture
def make_store(graph):
    def make(capacity_bytes: int = 1 << 20) -> WarehouseStore:
        return WarehouseStore(graph=graph, capacity_bytes=capacity_bytes)

    return make


def put(store: WarehouseStore, heads: list[Head], **changes: object) -> int:
    arguments: dict[str, object] = {
        "total": len(heads),
        "states": ("generate", "reward", "update"),
        "rows": new_rows(heads),
        "columns": {},
        "group_columns": {"prompt": column([1, 2, 3, 4])},
    }
    return store.put_rows("b", **{**arguments, **changes})  # type: ignore[arg-type]


def generate(store: WarehouseStore, uids: list[str], values: list[int], lease: str = "l1"):
    rows = [values for _ in uids]
    return store.write(
        state="generate",
        lease=lease,
        uids=uids,
        columns={"response": column(*rows), "logprobs": column(*rows, dtype="float32")},
        version=7,
    )


def finish(store: WarehouseStore, uids: list[str]) -> None:
    ones = [[1] for _ in uids]
    store.write(
        state="reward",
        lease="l2",
        uids=uids,
        columns={"reward": column(*ones, dtype="float32")},
        version=None,
    )
    store.write(state="update", lease="l3", uids=uids, columns={}, version=None)


def test_bytes_are_charged_once_a_row_and_once_a_group(make_store) -> None:
    store = make_store()

    put(store, heads(0, 3))

    assert store.charged_bytes == 3 * ROW_BYTES + 4 * 4


def test_a_repeated_put_stores_nothing(make_store) -> None:
    store = make_store()
    put(store, heads(0, 3))
    charged = store.charged_bytes

    again = put(store, heads(0, 3))

    assert again == 0
    assert store.charged_bytes == charged


def test_a_put_after_the_rows_were_freed_brings_none_back(make_store) -> None:
    store = make_store()
    put(store, heads(0, 1))
    generate(store, ["b/0/0"], [5])
    finish(store, ["b/0/0"])

    again = put(store, heads(0, 1))

    assert again == 0
    assert not store.num_rows and store.charged_bytes == 0


def test_the_group_column_lives_as_long_as_its_last_row(make_store) -> None:
    store = make_store()
    put(store, heads(0, 2))
    generate(store, ["b/0/0", "b/0/1"], [5])

    finish(store, ["b/0/0"])

    (found,) = store.read(["b/0/1"], ["prompt"])
    assert (str(found.form), found.of_groups) == ("int32", True)
    assert [np.frombuffer(own, "int32").tolist() for own in bytes_of(store, found)] == [
        [1, 2, 3, 4]
    ]
    finish(store, ["b/0/1"])
    assert store.charged_bytes == 0


def test_the_first_write_of_a_row_wins_with_all_its_columns(make_store) -> None:
    store = make_store()
    put(store, heads(0, 2))
    generate(store, ["b/0/0"], [1], lease="first")

    late = generate(store, ["b/0/0", "b/0/1"], [2, 2], lease="second")

    assert late.stored == 1
    assert late.duplicates == late.foreign == ("b/0/0",)
    responses, logprobs = store.read(["b/0/0", "b/0/1"], ["response", "logprobs"])
    for found, dtype in ((responses, "int32"), (logprobs, "float32")):
        values = [np.frombuffer(own, dtype).tolist() for own in bytes_of(store, found)]
        assert values == [[1], [2, 2]]


def test_a_repeated_write_under_one_lease_is_no_foreign_one(make_store) -> None:
    store = make_store()
    put(store, heads(0, 1))
    generate(store, ["b/0/0"], [1])

    again = generate(store, ["b/0/0"], [1])

    assert (again.stored, again.duplicates, again.foreign) == (0, ("b/0/0",), ())


def test_a_write_for_a_freed_row_is_a_duplicate(make_store) -> None:
    store = make_store()
    put(store, heads(0, 1))
    generate(store, ["b/0/0"], [1])
    finish(store, ["b/0/0"])

    late = generate(store, ["b/0/0"], [2], lease="late")

    assert late.foreign == ("b/0/0",)


def test_new_rows_wait_below_the_room_kept_for_derived_columns(make_store) -> None:
    store = make_store(capacity_bytes=4000)
    put(store, heads(0, 8), total=99)

    with pytest.raises(NoRoom):
        put(store, heads(1, 4), total=99)

    assert store.num_rows == 8
    assert generate(store, ["b/0/0"], [0] * 100).stored == 1


def test_derived_columns_within_the_reserve_always_find_room(make_store) -> None:
    store = make_store(capacity_bytes=4000)
    put(store, heads(0, 2, reserve_bytes=1000))
    charged = store.charged_bytes

    generate(store, ["b/0/0", "b/0/1"], [0] * 125)

    assert store.charged_bytes == charged


def test_derived_columns_beyond_the_capacity_wait(make_store) -> None:
    store = make_store(capacity_bytes=4000)
    put(store, heads(0, 2))

    with pytest.raises(NoRoom):
        generate(store, ["b/0/0", "b/0/1"], [0] * 500)

    with pytest.raises(DockRefused, match="'response' was not written"):
        store.read(["b/0/0"], ["response"])


def test_a_put_that_never_fits_is_refused_at_once(make_store) -> None:
    store = make_store(capacity_bytes=1000)

    with pytest.raises(DockFull, match=r"new rows may fill 750 of 1000 bytes"):
        put(store, heads(0, 8))


@pytest.mark.parametrize("reserves", [[2**63 - 1], [2**62, 2**62]])
def test_reserves_beyond_any_number_of_bytes_are_refused_like_others_that_never_fit(
    make_store, reserves
) -> None:
    store = make_store()
    rows = heads(0, len(reserves))
    told = msgspec.structs.replace(new_rows(rows), reserves=pack(reserves))

    with pytest.raises(DockFull, match="never fit"):
        put(store, rows, rows=told)

    assert (store.num_rows, store.charged_bytes) == (0, 0)


def test_the_stuck_state_is_the_one_that_most_rows_are_ready_for(make_store) -> None:
    store = make_store()
    put(store, heads(0, 3))

    generate(store, ["b/0/0", "b/0/1"], [1])

    assert store.stuck_state() == ("reward", 2)
    assert store.unacknowledged() == {"generate": 1, "reward": 3, "update": 3}


def test_a_dropped_batch_is_gone_for_good(make_store) -> None:
    store = make_store()
    put(store, heads(0, 2))

    freed = store.drop_batch("b")

    assert (freed, store.charged_bytes) == (2, 0)
    with pytest.raises(DockLost, match="dropped"):
        put(store, heads(0, 2))
    with pytest.raises(DockLost, match=r"row b/0/0 is not in this warehouse"):
        generate(store, ["b/0/0"], [1])


@pytest.mark.parametrize(("what", "most"), [("REMEMBERED_ROWS", 3), ("REMEMBERED_BATCHES", 1)])
def test_finished_batches_are_forgotten_in_the_end(make_store, monkeypatch, what, most) -> None:
    monkeypatch.setattr(f"rljob_runtime.dock.warehouse.store.{what}", most)
    store = make_store()

    for name in ("b0", "b1", "b2"):
        rows = heads(0, 2, batch=name)
        store.put_rows(
            name,
            total=2,
            states=("generate",),
            rows=new_rows(rows),
            columns={},
            group_columns={"prompt": column([1])},
        )
        generate(store, [row.uid for row in rows], [1])

    assert [*store.batches] == ["b2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": ("generate", "critic")}, "state 'critic' is not in the graph"),
        ({"states": ()}, "pass no state"),
        ({"states": ("reward",)}, r"needs \['response'\], but neither carry it"),
        ({"group_columns": {}}, r"pass state generate, which needs \['prompt'\]"),
        ({"columns": {"reward": column([1], [1])}}, "'reward', which state reward writes"),
        ({"columns": {"task": column([1])}}, "column task has 1 rows; b needs 2"),
        ({"rows": new_rows(heads(0, 3)[:2])}, "put all rows of a group at once"),
        (
            {"rows": new_rows([heads(0, 2)[0], heads(0, 2)[1]._replace(uid="b/0/0")])},
            "two new rows of b have one uid",
        ),
        (
            {
                "rows": msgspec.structs.replace(
                    new_rows(heads(0, 2)),
                    groups=pack_names(["b/0", "b/0"]),
                    sizes=pack([1, 1]),
                    indexes=pack([0, 0]),
                )
            },
            "a group is there twice in one put",
        ),
    ],
)
def test_wrong_puts_are_refused(make_store, changes, message) -> None:
    store = make_store()

    with pytest.raises(DockRefused, match=message):
        put(store, heads(0, 2), **changes)

    assert not store.num_rows and store.batches == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indexes": pack([-1])}, "a negative number"),
        ({"sizes": pack([0])}, "a size below 1"),
        ({"reserves": pack([0, -1])}, "a negative number or reserve"),
        ({"reserves": pack([0])}, r"2 new rows with \[2, 1\] numbers"),
        ({"versions": pack([0, 1, 2])}, r"2 new rows with \[3, 2\] numbers"),
        ({"sizes": pack([1, 1])}, r"1 new groups with \[2, 1\] numbers"),
        ({"versions": b"1"}, "1 bytes are not 64-bit integers"),
        ({"names": pack_names([])}, "0 new rows"),
    ],
)
def test_new_rows_whose_arrays_do_not_fit_each_other_are_no_rows(
    make_store, changes, message
) -> None:
    store = make_store()
    wrong = msgspec.structs.replace(new_rows(heads(0, 2)), **changes)

    with pytest.raises(MalformedFrame, match=message):
        put(store, heads(0, 2), rows=wrong)

    assert store.batches == {}


def test_a_second_put_must_agree_with_the_first(make_store) -> None:
    store = make_store()
    put(store, heads(0, 2), total=4)

    with pytest.raises(DockRefused, match=r"total=4 .* now with total=5"):
        put(store, heads(1, 2), total=5)
    with pytest.raises(DockRefused, match="column prompt of b is int32; this write has int64"):
        wrong = {"prompt": column([1], dtype="int64")}
        put(store, heads(1, 2), total=4, group_columns=wrong)
    with pytest.raises(DockRefused, match="row b/0/0 is in group b/0 already"):
        store.put_rows(
            "c",
            total=2,
            states=("generate",),
            rows=new_rows(heads(0, 2)),
            columns={},
            group_columns={"prompt": column([1])},
        )


def test_a_group_that_is_put_again_has_the_same_rows(make_store) -> None:
    store = make_store()
    put(store, heads(0, 2))
    other = [heads(0, 2)[0], heads(0, 2)[1]._replace(uid="another")]

    with pytest.raises(DockRefused, match="group b/0 was put with other rows than these 2"):
        put(store, other)

    assert live_uids(store) == ["b/0/0", "b/0/1"]


def test_wrong_writes_are_refused_and_store_nothing(make_store) -> None:
    store = make_store()
    put(store, heads(0, 2), states=("generate", "reward"))
    both = ["b/0/0", "b/0/1"]

    with pytest.raises(DockRefused, match=r"wrote columns \[\]; it must write"):
        store.write(state="generate", lease="l", uids=both, columns={}, version=1)
    with pytest.raises(DockRefused, match="names a row twice"):
        generate(store, ["b/0/0", "b/0/0"], [1])
    with pytest.raises(DockRefused, match="column reward has 1 rows, the write 2"):
        columns = {"reward": column([1], dtype="float32")}
        store.write(state="reward", lease="l", uids=both, columns=columns, version=1)
    with pytest.raises(DockRefused, match="does not pass state update"):
        store.write(state="update", lease="l", uids=both, columns={}, version=1)
    with pytest.raises(DockLost, match="row b/9/9 is not in this warehouse"):
        generate(store, ["b/0/0", "b/9/9"], [1])
    assert store.unacknowledged() == {"generate": 2, "reward": 2, "update": 0}
    with pytest.raises(DockRefused, match="'response' was not written"):
        store.read(both, ["response"])


def test_rows_that_skip_a_state_come_with_what_it_would_have_written(make_store) -> None:
    store = make_store()
    columns = {"response": column([1], [2]), "logprobs": column([1], [2], dtype="float32")}

    put(store, heads(0, 2), states=("reward", "update"), columns=columns)

    assert store.stuck_state() == ("reward", 2)
    with pytest.raises(DockRefused, match="carry column 'logprobs', which state generate writes"):
        store.put_rows(
            "c",
            total=2,
            states=("generate", "update"),
            rows=new_rows(heads(0, 2, batch="c")),
            columns=columns,
            group_columns={"prompt": column([1])},
        )


def test_a_state_that_is_the_only_one_acknowledges_without_its_columns(make_store) -> None:
    store = make_store()
    put(store, heads(0, 2), states=("generate",))
    both = ["b/0/0", "b/0/1"]

    with pytest.raises(DockRefused, match="it must write"):
        columns = {"response": column([1], [1])}
        store.write(state="generate", lease="l", uids=both, columns=columns, version=1)
    first = store.write(state="generate", lease="l", uids=both, columns={}, version=None)
    again = store.write(state="generate", lease="l", uids=both, columns={}, version=None)

    assert (first.stored, again.duplicates) == (2, tuple(both))
    assert not store.num_rows and store.charged_bytes == 0


def test_reading_a_column_that_is_not_there_is_refused(make_store) -> None:
    store = make_store()
    put(store, heads(0, 2))

    with pytest.raises(DockRefused, match="'response' was not written to every batch"):
        store.read(["b/0/0"], ["response"])
    generate(store, ["b/0/0"], [1])
    with pytest.raises(DockRefused, match="row b/0/1 has no column 'response' yet"):
        store.read(["b/0/0", "b/0/1"], ["response"])


def test_a_graph_names_each_state_and_writer_once() -> None:
    with pytest.raises(ValueError, match="state 'a' is declared twice"):
        StateGraph(states=(State(name="a", needs=()), State(name="a", needs=())))
    with pytest.raises(ValueError, match="written column 'x' is declared twice"):
        StateGraph(
            states=(
                State(name="a", needs=(), writes=("x",)),
                State(name="b", needs=(), writes=("x",)),
            )
        )


def test_a_state_may_add_columns_that_the_graph_does_not_know(make_store) -> None:
    store = make_store()
    put(store, heads(0, 2))

    store.write(
        state="generate",
        lease="l1",
        uids=["b/0/0", "b/0/1"],
        columns={
            "response": column([1], [2, 3]),
            "logprobs": column([1], [2, 3], dtype="float32"),
            "entropy": column([5], [6, 7], dtype="float16"),
        },
        version=7,
    )

    (found,) = store.read(["b/0/1", "b/0/0"], ["entropy"])
    assert (str(found.form), found.of_groups) == ("float16", False)
    assert [np.frombuffer(own, "float16").tolist() for own in bytes_of(store, found)] == [
        [6, 7],
        [5],
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reward", "which state reward writes; use another name"),
        ("prompt", "has column 'prompt' already"),
    ],
)
def test_an_added_column_takes_no_others_name(make_store, name: str, message: str) -> None:
    store = make_store()
    put(store, heads(0, 1))
    own = {"response": column([1]), "logprobs": column([1], dtype="float32")}

    with pytest.raises(DockRefused, match=message):
        store.write(
            state="generate",
            lease="l1",
            uids=["b/0/0"],
            columns={**own, name: column([1])},
            version=7,
        )

    assert store.unacknowledged()["generate"] == 1
