"""A bit that flips on the wire is asked for again, one that flips in a warehouse's memory is a lost row."""

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_rows import bytes_of, single

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.bit_sums import row_sums
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_copy import StoreCopy, add_chunk
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer
from rljob_runtime.errors import DockLost, DockTimeout

GRAPH = StateGraph(states=(State(name="use", needs=("tokens", "mask")),))
LENGTHS = [0, 3000, 1, 9000, 4001]
MANY = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class FlippingLink:
    """In front of a server: flips one bit of what passes in one direction, `times` times."""

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: tuple[str, int] = self._listener.getsockname()
        self.passed = {"up": 0, "down": 0}
        self.flips: tuple[str, int, int] | None = None
        self.times = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, direction: str, byte: int, bit: int, times: int = 1) -> None:
        """byte: how many bytes of the direction pass before it, from now or the flip before on."""
        self.flips, self.times = (direction, byte, bit), times
        self.passed = {"up": 0, "down": 0}

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._place)
                for ends in ((client, server, "up"), (server, client, "down")):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if self.flips and self.flips[0] == direction and self.times:
                    byte = self.flips[1] - self.passed[direction]
                    if 0 <= byte < len(data):
                        data[byte] ^= 1 << self.flips[2]
                        self.times -= 1
                        self.passed[direction] = -len(data)
                self.passed[direction] += len(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def columns(i: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(i)
    return {
        "tokens": draw.integers(0, 1 << 20, LENGTHS[i], dtype=np.int32),
        "mask": draw.integers(0, 2, LENGTHS[i]).astype(bool),
    }


def put(client: DockClient, batch: str) -> tuple[RowMeta, ...]:
    rows = [
        NewRow(uid=f"{batch}/{i}", group=f"{batch}/{i}", group_index=i, columns=columns(i))
        for i in range(len(LENGTHS))
    ]
    client.put_rows(batch, rows, total=len(rows))
    return client.claim(batch, share=(0, 1), timeout_seconds=10).rows


def assert_right(found: dict[str, Ragged]) -> None:
    for i in range(len(LENGTHS)):
        for name, values in columns(i).items():
            assert found[name].row(i).tolist() == values.tolist()


@pytest.fixture
def dock(make_dock):
    return make_dock(graph=GRAPH, capacity=16 << 20)


@pytest.fixture
def server(dock) -> WarehouseServer:
    found: WarehouseServer = dock.threads[0].server
    return found


@pytest.fixture
def link(dock) -> Iterator[FlippingLink]:
    link = FlippingLink(dock.address.warehouses[0])
    yield link
    link.close()


@pytest.fixture
def far(dock, link: FlippingLink) -> Iterator[DockClient]:
    """A client on another machine, so to say."""
    address: DockAddress = dataclasses.replace(dock.address, warehouses=(link.place,))
    with DockClient(
        address,
        state="use",
        owner="far",
        shared_memory="none",
        timeout_seconds=5,
        full_timeout_seconds=5,
    ) as client:
        client.stats()  # connected
        yield client


@pytest.mark.parametrize("direction", ["up", "down"])
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), early=st.booleans())
@MANY
def test_a_bit_that_flips_on_the_wire_is_asked_for_again(
    far: DockClient, link: FlippingLink, server: WarehouseServer, caplog: pytest.LogCaptureFixture,
    direction: str, where: float, bit: int, early: bool,
) -> None:  # fmt: skip
    frame_bytes = 5 * sum(LENGTHS)  # and more: its head, its header and its sum
    byte = int(where * (200 if early else frame_bytes))
    link.arm("none", 0, 0)
    batch = f"b{far.stats().servers['warehouse/0']['requests']}"
    refused = server.refused["damaged"]
    caplog.clear()

    if direction == "up":
        link.arm("up", byte, bit)
        rows = put(far, batch)
    else:
        rows = put(far, batch)
        link.arm("down", byte, bit)
    found = far.read(rows, ["tokens", "mask"])

    assert link.times == 0
    assert_right(found)
    assert server.refused["damaged"] - refused == (direction == "up")
    assert "came with other bits than were sent" in caplog.text
    far.drop_batch(batch)


def test_a_wire_that_flips_every_frame_ends_with_an_error_that_says_so(
    far: DockClient, link: FlippingLink, dock
) -> None:
    rows = put(far, "a")
    link.arm("down", 3000, 5, times=1 << 30)
    far._timeout = 0.5

    with pytest.raises(
        DockTimeout,
        match=r"read waited 0\.5 s for warehouse/0: DONE of \d+ bytes came with other bits",
    ):
        far.read(rows, ["tokens"])


@pytest.mark.parametrize(
    "shared_memory", ["required", pytest.param("none", marks=pytest.mark.nightly)]
)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@MANY
def test_a_bit_that_flips_in_the_arena_is_a_lost_row(
    dock, server: WarehouseServer, shared_memory: str, where: float, bit: int
) -> None:
    with DockClient(dock.address, state="use", owner="w", shared_memory=shared_memory) as client:
        rows = put(client, f"b{len(server.store.batches)}")
        assert_right(client.read(rows, ["tokens", "mask"]))
        with (
            flipped(server.store, where, bit) as name,
            pytest.raises(
                DockLost, match=rf"{name} of 5 rows in warehouse/0 \(.*/0 is the first\)"
            ),
        ):
            client.read(rows, ["tokens", "mask"])
        assert_right(client.read(rows, ["tokens", "mask"]))
        client.acknowledge(rows)
        assert client.stats().servers["warehouse/0"]["pins"] == 0


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@MANY
def test_a_standby_made_of_flipped_bits_is_no_cover_for_them(
    dock, server: WarehouseServer, where: float, bit: int
) -> None:
    with DockClient(dock.address, state="use", owner="w") as client:
        batch = f"b{len(server.store.batches)}"
        rows = put(client, batch)
        copy = WarehouseStore(graph=GRAPH, capacity_bytes=16 << 20)
        with flipped(server.store, where, bit) as name:
            taken = StoreCopy(server.store)
            for chunk, buffers in taken.chunks():
                add_chunk(copy, chunk, memoryview(b"".join(buffers)))
            taken.release()

        wrong = {
            column.name
            for column in copy.read([row.uid for row in rows], ["tokens", "mask"])
            for run, data in zip(single(column.runs), bytes_of(copy, column), strict=True)
            if run.total(column.name)
            != row_sums(data, column.form.word_bytes, np.array([len(data)]))[0]
        }
        assert wrong == {name}
        client.acknowledge(rows)


@contextlib.contextmanager
def flipped(store: WarehouseStore, where: float, bit: int) -> Iterator[str]:
    """One bit of a live row's bytes; the column's name."""
    parts = [
        (name, span)
        for record in store.batches.values()
        for _, _, run in record.columns.live_runs()
        for name in run.slab.columns
        for row in single([run])
        for span in row.spans(name)
    ]
    name, (start, end) = parts[int(where * len(parts))]
    place = start + int(where * len(parts) % 1 * (end - start))
    store.slabs.memory.view[place] ^= 1 << bit
    yield name
    store.slabs.memory.view[place] ^= 1 << bit
