"""Reading from a warehouse's memory: who may, what stays as it is, and what it falls back to."""

import errno
import itertools
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from dock_conversations import packed, plain
from forked_docks import ForkedDock
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_rows import Head, new_rows
from wait_until import wait_until

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.clients.transport import map_column
from rljob_runtime.dock.clients.warehouse_channel import MemoryMap
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire import unix
from rljob_runtime.dock.wire.encoding import decode_chunked_column
from rljob_runtime.dock.wire.frames import FrameKind, MalformedFrame
from rljob_runtime.dock.wire.memory import WarehouseMemory
from rljob_runtime.dock.wire.messages import ColumnHead, StoredColumn
from rljob_runtime.errors import DockFull, DockLost, DockRefused

GRAPH = StateGraph(states=(State(name="use", needs=("data",)),))
BIG = 5000
"""Values of a row whose bytes are read from the memory rather than sent."""


def put(client: DockClient, batch: str, rows: int = 4, length: int = BIG) -> None:
    """Rows whose values are all their number."""
    client.put_rows(
        batch,
        [
            NewRow(
                uid=f"{batch}/{i}",
                group=f"{batch}/{i}",
                group_index=i,
                columns={"data": np.full(length, i, dtype=np.int64)},
            )
            for i in range(rows)
        ],
        total=rows,
    )


def claimed(client: DockClient, batch: str) -> tuple[RowMeta, ...]:
    return client.claim(batch, share=(0, 1), timeout_seconds=10).rows


@pytest.fixture
def dock(make_dock):
    return make_dock(graph=GRAPH, capacity=4 << 20)


def warehouse(client: DockClient) -> dict[str, int]:
    """Its report; asked for with a request, so that earlier messages of this client are done."""
    return dict(client.stats().servers["warehouse/0"])


@pytest.mark.parametrize("mode", ["auto", "required", "none"])
def test_every_mode_reads_the_same(make_dock, mode: str) -> None:
    dock = make_dock(graph=GRAPH, capacity=16 << 20, warehouses=2, shared_memory=mode)
    client = dock.client("use")
    put(client, "a", rows=10)
    rows = claimed(client, "a")

    whole = client.read(rows, ["data"])["data"]
    some = client.read([rows[i] for i in (7, 1, 4)], ["data"])["data"]
    with client.view(rows, ["data"]) as columns:
        viewed = [row[0] for row in columns["data"].rows()]

    assert [set(row.tolist()) for row in whole.rows()] == [{i} for i in range(10)]
    assert [set(row.tolist()) for row in some.rows()] == [{7}, {1}, {4}]
    assert viewed == list(range(10))
    assert {path.shared for path in client.data_paths.values()} == {mode != "none"}
    assert warehouse(client)["attached"] == (mode != "none")
    whole.values[:] = 7  # the caller's own


def test_a_view_is_no_copy_and_cannot_be_written_to(dock) -> None:
    client = dock.client("use")
    put(client, "a")
    rows = claimed(client, "a")

    with client.view(rows, ["data"]) as first, client.view(rows, ["data"]) as second:
        assert np.shares_memory(first["data"].values, second["data"].values)
        with pytest.raises(ValueError, match="read-only"):
            first["data"].values[0] = 1
        assert warehouse(client)["pins"] == 2

    assert warehouse(client)["pins"] == 0


def test_small_answers_carry_their_bytes(dock) -> None:
    client = dock.client("use")
    put(client, "a", length=10)
    rows = claimed(client, "a")

    with client.view(rows, ["data"]) as columns:
        assert warehouse(client)["pins"] == 0
        assert columns["data"].row(3).tolist() == [3] * 10


def test_bytes_under_a_view_stay_though_their_rows_are_gone(dock) -> None:
    reader, writer = dock.client("use", "reader"), dock.client("use", "writer")
    put(reader, "a", rows=40)
    rows = claimed(reader, "a")

    with reader.view(rows, ["data"]) as columns:
        writer.drop_batch("a")
        retained = warehouse(writer)["retained"]
        put(writer, "b", rows=40)  # would take the same bytes
        seen = [set(row.tolist()) for row in columns["data"].rows()]

    assert retained == 40 * BIG * 8
    assert seen == [{i} for i in range(40)]
    assert warehouse(reader)["retained"] == 0


def test_producers_wait_for_the_bytes_that_a_reader_holds(dock) -> None:
    reader, writer = dock.client("use", "reader"), dock.client("use", "writer")
    put(writer, "a", rows=70)
    done = threading.Event()

    with reader.view(claimed(reader, "a"), ["data"]) as columns:
        writer.drop_batch("a")
        thread = threading.Thread(target=lambda: (put(writer, "b", rows=70), done.set()))
        thread.start()
        wait_until("the put waits", lambda: reader.stats().waiting)
        assert set(columns["data"].row(69).tolist()) == {69}
    thread.join(10)

    assert done.is_set()


def test_a_readers_pins_end_with_its_connection(dock) -> None:
    reader, watcher = dock.client("use", "reader"), dock.client("use", "watcher")
    put(reader, "a")
    view = reader.view(claimed(reader, "a"), ["data"])
    view.__enter__()
    assert warehouse(watcher)["pins"] == 1

    reader.close()

    deadline = time.monotonic() + 5
    while warehouse(watcher)["pins"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert warehouse(watcher)["pins"] == 0
    with pytest.raises(DockLost, match="its bytes may have changed"):
        view.__exit__(None, None, None)


def test_a_view_past_its_lease_is_told_that_its_bytes_may_have_changed(make_dock) -> None:
    dock = make_dock(graph=GRAPH, capacity=4 << 20, lease_seconds=0.3)
    reader, watcher = dock.client("use", "reader"), dock.client("use", "watcher")
    put(reader, "a")
    rows = claimed(reader, "a")

    expected = pytest.raises(DockLost, match="held for longer than a lease")
    with expected, reader.view(rows, ["data"]):
        wait_until("the pin expires", lambda: warehouse(watcher)["expired_pins"])

    assert warehouse(watcher)["pins"] == 0
    assert reader.read(rows, ["data"])["data"].row(2)[0] == 2


def test_an_error_inside_a_view_is_the_callers_own(dock) -> None:
    client = dock.client("use")
    put(client, "a")

    with pytest.raises(ZeroDivisionError), client.view(claimed(client, "a"), ["data"]):
        client.close()
        _ = 1 / 0


def attach(path: Path, token: str = "secret") -> tuple[socket.socket, list[int]]:
    """Connect to a warehouse's socket as a client does; returns the descriptors it gives."""
    raw = unix.connect(path, 5.0)
    raw.sendall(
        packed(
            FrameKind.HELLO, {"token": token, "role": "warehouse/0", "owner": "x", "session": "y"}
        )
    )
    raw.recv(65536)
    raw.sendall(packed(FrameKind.ATTACH, {}))
    _, descriptors, _, _ = socket.recv_fds(raw, 65536, 2)
    return raw, list(descriptors)


@pytest.fixture
def socket_path(dock, tmp_path: Path) -> Path:
    (path,) = (tmp_path / "dock").glob("warehouse-*")
    return path


def test_a_reader_can_neither_write_the_memory_nor_cut_it(socket_path: Path) -> None:
    raw, (descriptor, writable) = attach(socket_path)
    size = os.fstat(descriptor).st_size

    attempts: list[Callable[[], object]] = [
        lambda: mmap.mmap(descriptor, size),
        lambda: os.write(descriptor, b"x"),
        lambda: os.ftruncate(writable, 0),
        lambda: os.ftruncate(writable, 2 * size),
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as refused:
            attempt()
        assert refused.value.errno in (errno.EPERM, errno.EACCES, errno.EBADF, errno.EINVAL)
    assert len(mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)) == size
    raw.close()
    os.close(writable)
    os.close(descriptor)


def held_by(dock) -> WarehouseStore:
    store: WarehouseStore = dock.threads[0].server.store
    return store


def becomes(wanted: int, look: Callable[[], int]) -> bool:
    """Whether it is that within ten seconds."""
    deadline = time.monotonic() + 10
    while look() != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return look() == wanted


def large_rows(batch: str, rows: int = 4, value: int = 0) -> list[NewRow]:
    """Rows of 64 KiB, whose messages lie in slabs."""
    return [
        NewRow(
            uid=f"{batch}/{i}",
            group=f"{batch}/{i}",
            group_index=i,
            columns={"data": np.full(64 << 10, value + i, dtype=np.uint8)},
        )
        for i in range(rows)
    ]


def test_columns_stay_where_their_writer_laid_them(dock) -> None:
    client = dock.client("use")
    channel = client._connections._channels["warehouse/0"]
    client.put_rows("a", large_rows("a"), 4, states=["use"])
    granted = channel._slab

    client.put_rows("b", large_rows("b", value=9), 4, states=["use"])

    (located,) = held_by(dock).read([f"b/{i}" for i in range(4)], ["data"])
    (run,) = located.runs
    assert run.spans("data") == [(granted.start, granted.start + 4 * (64 << 10))]
    values = client.read(claimed(client, "b"), ["data"])["data"]
    assert [set(values.row(i).tolist()) for i in range(4)] == [{9}, {10}, {11}, {12}]


def test_rows_that_are_put_again_lie_once(dock) -> None:
    client = dock.client("use")
    client.put_rows("a", large_rows("a"), 8, states=["use"])
    free = held_by(dock).slabs.arena.free_bytes

    assert client.put_rows("a", large_rows("a"), 8, states=["use"]) == 0
    assert client.put_rows("a", large_rows("a", 8), 8, states=["use"]) == 4

    (first, second) = held_by(dock).read([f"a/{i}" for i in (0, 4)], ["data"])[0].runs
    assert free - held_by(dock).slabs.arena.free_bytes == 4 * (64 << 10)
    assert first.slab is not second.slab


def test_a_slab_goes_back_with_its_writer_unless_that_was_cut_off(dock) -> None:
    gone, cut = dock.client("use", "gone"), dock.client("use", "cut")
    for client in (gone, cut):
        client.put_rows(client.owner, large_rows(client.owner), 4, states=["use"])
        client.acknowledge(claimed(client, client.owner))
    kept = cut._connections._channels["warehouse/0"]._slab

    (peer,) = [peer for peer in dock.threads[0].server.peers if peer.owner == "cut"]
    dock.threads[0]._loop.call_soon_threadsafe(peer.close)
    gone.close()

    slabs = held_by(dock).slabs
    free = slabs.memory.num_bytes - (kept.end - kept.start)
    assert becomes(free, lambda: slabs.arena.free_bytes)


def test_without_room_for_slabs_columns_come_through_the_socket(dock) -> None:
    client = dock.client("use")
    held_by(dock).slabs.grantable_bytes = 0

    client.put_rows("a", large_rows("a"), 4, states=["use"])

    values = client.read(claimed(client, "a"), ["data"])["data"]
    assert [set(values.row(i).tolist()) for i in range(4)] == [{0}, {1}, {2}, {3}]
    assert client._connections._channels["warehouse/0"]._slab is None


def test_a_put_that_waits_for_room_is_stored_as_it_was_written(dock) -> None:
    first, second = dock.client("use", "first"), dock.client("use", "second")
    put(first, "full", rows=60)
    waiting = threading.Thread(target=put, args=(second, "late"), kwargs={"rows": 30})
    waiting.start()
    wait_until("the put waits", lambda: first.stats().waiting)
    put_fails = pytest.raises(DockFull)
    with put_fails, dock.client("use", "third", full_timeout_seconds=0.1) as third:
        put(third, "never", rows=30)  # its bytes are given up while the second's still wait

    first.acknowledge(claimed(first, "full"))
    waiting.join(20)

    values = first.read(claimed(first, "late"), ["data"])["data"]
    assert [set(values.row(i).tolist()) for i in range(30)] == [{i} for i in range(30)]


@pytest.mark.parametrize("granted", [-1, 1, 1 << 40])
def test_bytes_of_a_slab_that_was_not_granted_are_refused(
    dock, socket_path: Path, granted: int
) -> None:
    rows = plain(new_rows([Head("a/0", "a/0", 0, 1, 0, 0, 0)]))
    fields = {"batch": "a", "total": 1, "states": ["use"], "rows": rows}
    message = {**fields, "columns": [], "timeout": 1.0, "granted": granted}
    raw, descriptors = attach(socket_path)

    raw.sendall(packed(FrameKind.PUT_ROWS, message))
    answer = raw.recv(65536)

    assert b"no such one was granted" in answer
    assert dock.client("use").stats().refused == {"malformed": 1}
    raw.close()
    for descriptor in descriptors:
        os.close(descriptor)


def test_the_socket_asks_for_the_token(dock, socket_path: Path) -> None:
    raw = unix.connect(socket_path, 5.0)
    raw.sendall(
        packed(FrameKind.HELLO, {"token": "x", "role": "warehouse/0", "owner": "x", "session": "y"})
    )
    answer = raw.recv(65536)
    raw.close()

    assert b"wrong token" in answer
    assert dock.client("use").stats().refused == {"token": 1}


HELLO = packed(
    FrameKind.HELLO, {"token": "secret", "role": "warehouse/0", "owner": "x", "session": "y"}
)


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (packed(FrameKind.RELEASE, {}), 1),
        (packed(FrameKind.RELEASE, {"pins": ["a"]}), 1),
        (packed(FrameKind.RELEASE, {"pins": [True]}), 1),
        (packed(FrameKind.RELEASE, {"pins": [1, -1, 1 << 60]}), 0),
        (packed(FrameKind.ATTACH, {"anything": 1}), 0),
    ],
)
def test_wrong_releases_are_refused_and_unknown_pins_ignored(
    dock, socket_path: Path, sent: bytes, refused: int
) -> None:
    with unix.connect(socket_path, 5.0) as raw:
        raw.sendall(HELLO)
        raw.recv(65536)
        raw.sendall(sent)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            continue

    assert sum(dock.client("use").stats().refused.values()) == refused


def test_memory_is_not_given_over_tcp(dock) -> None:
    with socket.create_connection(dock.address.warehouses[0], timeout=5) as raw:
        raw.sendall(HELLO)
        raw.recv(65536)
        raw.sendall(packed(FrameKind.ATTACH, {}))
        answer = raw.recv(65536)

    assert b"gives its memory to peers on its unix socket only" in answer


def test_random_bytes_on_the_socket_never_stop_a_warehouse(dock, socket_path: Path) -> None:
    rng = np.random.default_rng(2)
    read = packed(FrameKind.READ, {"uids": ["a/0"], "columns": ["data"]})
    good = HELLO + packed(FrameKind.ATTACH, {}) + read + packed(FrameKind.RELEASE, {"pins": [0]})
    client = dock.client("use")
    put(client, "a")

    for _ in range(150):
        data = bytearray(good)
        for place in rng.integers(len(HELLO) - 20, len(data), size=3):
            data[place] = rng.integers(0, 256)
        with unix.connect(socket_path, 5.0) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)

    assert client.read(claimed(client, "a"), ["data"])["data"].row(3)[0] == 3


@pytest.fixture(scope="module")
def memory_map() -> Iterator[MemoryMap]:
    memory = WarehouseMemory(4096, shared=True)
    descriptor = memory.open_read_only()
    yield MemoryMap(descriptor, 1.0)
    os.close(descriptor)
    memory.close()


@given(
    spans=st.one_of(
        st.binary(max_size=40),
        st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-1, 4100), max_size=6).map(
            lambda numbers: np.asarray(numbers, dtype="<i8").tobytes()
        ),
    ),
    lengths=st.lists(st.integers(-1, 4100) | st.just(1 << 62), max_size=3),
    tail=st.lists(st.integers(0, 3), max_size=2),
)
@settings(max_examples=300, deadline=None)
def test_whatever_spans_come_are_a_column_or_malformed(memory_map, spans, lengths, tail) -> None:
    head = StoredColumn(
        name="a",
        dtype="uint8",
        tail=tuple(tail),
        lengths=np.asarray(lengths, dtype="<i8").tobytes(),
        of_groups=False,
        spans=spans,
    )

    try:
        column = map_column(head, memory_map)
    except MalformedFrame:
        return
    assert column.lengths.tolist() == lengths
    assert column.num_bytes <= 4096 * len(spans) // 16


def test_rows_that_lie_apart_are_seen_in_place(dock) -> None:
    client = dock.client("use")
    put(client, "a", rows=20)
    rows = claimed(client, "a")[::3]

    with client.view(rows, ["data"]) as columns:
        seen = [set(row.tolist()) for row in columns["data"].rows()]
        assert not any(row.flags.owndata or row.flags.writeable for row in columns["data"].rows())
        assert columns["data"].values.tolist() == np.repeat(range(0, 20, 3), BIG).tolist()

    assert seen == [{i} for i in range(0, 20, 3)]


@given(cuts=st.sets(st.integers(1, 59)), lengths=st.permutations([0, 1, 2, 5, 7]))
def test_a_row_in_several_parts_is_put_together(cuts, lengths) -> None:
    data = np.arange(15, dtype=np.int32).tobytes()
    ends = [0, *sorted(cuts), 60]
    parts = [memoryview(data[a:b]) for a, b in itertools.pairwise(ends)]
    packed_lengths = np.asarray(lengths, dtype="<i8").tobytes()

    head = ColumnHead(name="a", dtype="int32", tail=(), lengths=packed_lengths)
    column = decode_chunked_column(head, parts)

    assert column.values.tolist() == list(range(15))
    assert [len(row) for row in column.rows()] == list(lengths)


def test_a_long_directory_is_no_obstacle(make_dock, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    dock = make_dock(graph=GRAPH, shared_directory=str(deep), shared_memory="required")
    client = dock.client("use")

    put(client, "a", rows=1, length=1)

    assert client.data_paths[0].shared


def test_required_names_warehouse_reason_and_remedy(make_dock) -> None:
    dock = make_dock(graph=GRAPH, shared_directory=None, shared_memory="required")

    expected = (
        r"warehouse/0 is on this machine, but its memory is not reached through a socket: it was "
        r"given no shared directory; spec\.dock\.sharedMemory is required: .*RLJOB_DOCK_DIRECTORY"
    )
    with pytest.raises(DockRefused, match=expected):
        put(dock.client("use"), "a")


def test_required_names_the_path_that_this_client_does_not_see(make_dock, tmp_path: Path) -> None:
    dock = make_dock(graph=GRAPH, shared_memory="required")
    (tmp_path / "dock").rename(tmp_path / "elsewhere")

    with pytest.raises(DockRefused, match=rf"{tmp_path}/dock/warehouse-0-\w+\.sock: No such file"):
        put(dock.client("use"), "a")


def test_auto_falls_back_to_tcp_and_says_why(make_dock, tmp_path: Path) -> None:
    dock = make_dock(graph=GRAPH)
    (tmp_path / "dock").rename(tmp_path / "elsewhere")
    client = dock.client("use")
    put(client, "a")

    values = client.read(claimed(client, "a"), ["data"])["data"].row(1)

    assert values[0] == 1
    assert not client.data_paths[0].shared
    assert "No such file or directory" in client.data_paths[0].why


def test_a_directory_that_cannot_be_made_leaves_tcp(make_dock, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    client = make_dock(graph=GRAPH, shared_directory=str(tmp_path / "file")).client("use")

    put(client, "a")

    assert str(tmp_path / "file") in client.data_paths[0].why


def test_another_machine_is_read_over_tcp_even_where_sharing_is_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ForkedDock(GRAPH.states, shared_memory="required") as dock:
        (tmp_path / "boot_id").write_text("another")
        monkeypatch.setattr(unix, "BOOT_ID", tmp_path / "boot_id")
        client = dock.client("use", "u")
        put(client, "a")

        assert client.read(claimed(client, "a"), ["data"])["data"].row(1)[0] == 1
        assert client.data_paths[0].why == "the warehouse is on another machine"


def test_a_restarted_warehouse_is_mapped_anew_and_leaves_no_socket() -> None:
    with ForkedDock(GRAPH.states, shared_memory="required") as dock:
        folder = dock._sockets.path
        client = dock.client("use", "u")
        put(client, "a")
        (first,) = folder.glob("warehouse-*")
        rows = claimed(client, "a")
        expected = pytest.raises(DockLost, match="its bytes may have changed")
        with expected, client.view(rows, ["data"]) as columns:
            dock.kill("warehouse/0")
            dock.start("warehouse/0")
            put(client, "a")
            assert set(columns["data"].row(2).tolist()) == {2}  # the old map stays readable

        assert client.read(rows, ["data"])["data"].row(2)[0] == 2
        (second,) = folder.glob("warehouse-*")
        assert first != second
    assert not folder.exists()


def churn(dock: ForkedDock, name: str, until: float, wrong: list[str], seen: list[int]) -> None:
    """Put, view, free the rows under the view so that others' bytes want their place, look again."""
    rng = np.random.default_rng(len(name))
    with DockClient(dock.address, state="use", owner=name) as client:
        for turn in range(100_000):
            over = time.monotonic() - until  # a busy machine may need longer for its turns
            if over > 20 or (over > 0 and len(seen) > 40):
                return
            batch = f"{name}/{turn}"
            lengths = rng.integers(0, 20_000, size=6)
            stamps = rng.integers(1, 1 << 40, size=6)
            client.put_rows(
                batch,
                [
                    NewRow(
                        uid=f"{batch}/{i}",
                        group=f"{batch}/{i}",
                        group_index=i,
                        columns={"data": np.full(lengths[i], stamps[i], dtype=np.int64)},
                    )
                    for i in range(6)
                ],
                total=6,
            )
            rows = claimed(client, batch)[:: int(rng.integers(1, 3))]
            with client.view(rows, ["data"]) as columns:
                client.drop_batch(batch)
                for _ in range(4):
                    for row, values in zip(rows, columns["data"].rows(), strict=True):
                        if (values != stamps[row.group_index]).any():
                            wrong.append(f"{row.uid} holds {set(values.tolist())}")
                    time.sleep(0.002)
            seen.append(turn)


def test_nothing_changes_under_views_while_writers_take_every_free_byte() -> None:
    wrong: list[str] = []
    seen: list[int] = []
    with ForkedDock(GRAPH.states, capacity=4 << 20, shared_memory="required") as dock:
        until = time.monotonic() + 3.0
        threads = [
            threading.Thread(target=churn, args=(dock, "x" * n, until, wrong, seen))
            for n in range(1, 5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        with dock.client("use", "watcher") as watcher:
            report = warehouse(watcher)

    assert not wrong
    assert len(seen) > 40
    assert (report["pins"], report["retained"], report["expired_pins"]) == (0, 0, 0)


def test_a_client_waits_for_a_server_whose_queue_is_full(tmp_path: Path) -> None:
    listener, path = unix.listen(tmp_path, "w0")
    listener.listen(1)
    waiting = []
    with pytest.raises(TimeoutError):
        while True:
            waiting.append(unix.connect(path, 0.2))

    taken = threading.Timer(0.2, listener.accept)
    taken.start()
    late = unix.connect(path, 10.0)

    for connection in [*waiting, late, listener]:
        connection.close()
    taken.join()
