"""The broadcast between warehouses and controllers, expiry, and requests that lie."""

import asyncio
import itertools
import re
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numbered_rows import pack
from stored_columns import stored
from stored_rows import Head, new_rows
from wait_until import wait_until

from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.controller.controller_server import ControllerServer
from rljob_runtime.dock.controller.subscription import Subscription
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.names import PackedNames, unpack_names
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.dock.warehouse.broadcast import Broadcaster
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer
from rljob_runtime.dock.wire import tcp
from rljob_runtime.dock.wire.channel import Channel, ClientIdentity
from rljob_runtime.dock.wire.frames import Frame, FrameKind, pack_value
from rljob_runtime.dock.wire.messages import (
    ClaimAnswer,
    ClaimRows,
    Hello,
    Notices,
    PutRows,
    Renew,
    Snapshot,
    Subscribe,
    unpack_numbers,
)
from rljob_runtime.dock.wire.peer import Peer, Reply
from rljob_runtime.errors import DockLost, DockRefused

DOCS = Path(__file__).parents[2] / "docs" / "dock.md"


def raw_channel(dock, role: str) -> Channel:
    identity = ClientIdentity(owner="raw", session="raw-1")
    return Channel(role=role, find=lambda: dock.address, identity=identity)


def claim_raw(channel: Channel, request: str = "1") -> ClaimAnswer:
    claim = ClaimRows(request=request, batch="t", whole_groups=False)
    return channel.ask(claim, timeout_seconds=5)


HELLO = Hello(token="", role="warehouse/0", owner="generate", session="s")
WISH = Subscribe(state="generate", needs=["prompt"], seen=[])


def test_controllers_follow_a_warehouse_that_restarts_on_its_port(make_dock, rows_of) -> None:
    dock = make_dock()
    feeder, generate = dock.client("feed"), dock.client("generate")
    feeder.put_rows("t", rows_of("t", groups=2, samples=2), total=4)
    rows = generate.claim("t", timeout_seconds=5).rows
    old = dock.threads[0]
    old.stop()
    time.sleep(0.3)

    new = WarehouseServer(
        index=0,
        graph=dock.graph,
        capacity_bytes=dock.capacity,
        token=dock.token,
        port=dock.address.warehouses[0][1],
    )
    dock.threads[0] = ServerThread(new)
    dock.threads[0].start()

    generate.give_back(rows)
    with pytest.raises(DockLost, match="4 of 4 rows of t were lost with their warehouse"):
        for _ in range(200):
            generate.give_back(generate.claim("t", timeout_seconds=10).rows)
            time.sleep(0.02)
    assert feeder.put_rows("u", rows_of("u", groups=1, samples=1), total=1) == 1
    assert len(generate.claim("u", timeout_seconds=10).rows) == 1


class Heard:
    """A controller's connection, as a warehouse sends to it."""

    unsent_bytes = 0

    def __init__(self) -> None:
        self.told: list[Notices] = []

    def send_now(self, reply: Reply) -> None:
        assert isinstance(reply.message, Notices)
        self.told.append(reply.message)


async def test_new_rows_are_told_before_their_put_is_answered_and_all_else_a_turn_later(
    graph,
) -> None:
    store, broadcast, peer = (
        WarehouseStore(graph=graph, capacity_bytes=1 << 20),
        Broadcaster(),
        Heard(),
    )
    broadcast.subscribe(peer, "generate", frozenset({"prompt"}))  # type: ignore[arg-type]
    rows = new_rows([Head("t/0/0", "t/0", 0, 1, 0, 0, 0)])
    prompt = stored(Ragged.from_rows([np.arange(3)]))

    store.put_rows(
        "t", total=1, states=graph.names, rows=rows, columns={}, group_columns={"prompt": prompt}
    )
    broadcast.publish(store.take_notices())
    told = [len(message.rows) for message in peer.told]
    store.drop_batch("t")
    broadcast.publish(store.take_notices())
    at_once = len(peer.told)
    await asyncio.sleep(0)

    assert (told, at_once) == ([1], 1), "a warehouse that dies now has told of the row"
    assert peer.told[-1].drops == ["t"]


async def test_a_controller_of_a_pod_that_is_gone_asks_where_the_next_one_is(
    make_dock, lost_pod, monkeypatch
) -> None:
    monkeypatch.setattr(tcp, "CONNECT_SECONDS", 0.2)
    dock = make_dock()
    places = itertools.chain([lost_pod] * 3, itertools.repeat(dock.address.warehouses[0]))
    told: list[tuple[str, int]] = []
    snapshot = asyncio.Event()
    subscription = Subscription(
        index=0,
        address=lambda: told.append(next(places)) or told[-1],
        hello=msgspec.structs.replace(HELLO, token=dock.token),
        subscribe=WISH,
        on_snapshot=lambda *told: snapshot.set(),
        on_notices=lambda *told: None,
    )
    subscription.start()

    async with asyncio.timeout(30):
        await snapshot.wait()

    await subscription.stop()
    assert told[:3] == [lost_pod] * 3
    assert set(told[3:]) == {dock.address.warehouses[0]}


def test_a_controller_with_a_wrong_token_learns_nothing(make_dock, graph) -> None:
    dock = make_dock()
    stranger = ControllerServer(
        state="generate", graph=graph, warehouses=dock.address.warehouses, token="wrong"
    )
    watcher = dock.client("watch")

    with ServerThread(stranger):
        wait_until("the stranger is refused", lambda: watcher.stats().refused)

    assert watcher.stats().refused.keys() == {"token"}
    assert stranger.ledger.warehouse_epochs == {}


def test_a_waiting_claim_ends_when_its_batch_is_dropped(make_dock, rows_of) -> None:
    dock = make_dock()
    feeder = dock.client("feed")
    feeder.put_rows("t", rows_of("t", groups=1, samples=1), total=1)
    errors: list[str] = []

    def wait() -> None:
        try:
            dock.client("reward").claim("t", timeout_seconds=10)
        except DockLost as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until("the claim waits", lambda: feeder.stats().waiting)
    feeder.drop_batch("t")
    thread.join(5)

    assert errors == ["batch t was dropped"]


def test_an_expired_lease_wakes_those_who_wait(make_dock, rows_of) -> None:
    dock = make_dock(lease_seconds=0.3)
    dock.client("feed").put_rows("t", rows_of("t", groups=1, samples=2), total=2)
    silent = raw_channel(dock, "controller/generate")
    assert len(unpack_names(claim_raw(silent).rows.uids)) == 2

    claim = dock.client("generate", "heir").claim("t", timeout_seconds=5)
    silent.close()

    assert [row.attempt for row in claim.rows] == [2, 2]


def test_a_claim_whose_answer_was_lost_is_answered_the_same_again(make_dock, rows_of) -> None:
    dock = make_dock()
    dock.client("feed").put_rows("t", rows_of("t", groups=1, samples=2), total=2)
    first = raw_channel(dock, "controller/generate")
    second = raw_channel(dock, "controller/generate")

    answer = claim_raw(first, "7")
    second.ask(Renew(leases=[]), timeout_seconds=5)
    first.close()
    again = claim_raw(second, "7")
    second.close()

    # only the first may have come before the controller knew of the rows
    assert msgspec.structs.replace(answer, waited=None) == again


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"rows": []}, {}),
        ({"rows": 7}, {}),
        ({"total": -1}, {}),
        ({}, {"names": ["u"]}),
        ({}, {"names": PackedNames(text=b"u", ends=b"\x02\0\0\0")}),
        ({}, {"groups": PackedNames(text=b"g", ends=b"\x01\0")}),
        ({}, {"groups": PackedNames(text=b"\xff", ends=b"\x01\0\0\0")}),
        ({}, {"versions": "new"}),
        ({}, {"versions": b"new"}),
        ({}, {"reserves": pack([-5])}),
        ({}, {"indexes": pack([0, 1])}),
    ],
)
def test_a_put_that_lies_is_malformed(make_dock, changes, rows) -> None:
    dock = make_dock()
    known = new_rows([Head("u", "g", 0, 1, 0, 0, 0)])
    header = {
        "batch": "t",
        "total": 1,
        "states": ["generate"],
        "rows": msgspec.structs.replace(known, **rows),
        "columns": [],
    }

    with pytest.raises(DockRefused, match="warehouse/0 refused a frame"):
        raw_channel(dock, "warehouse/0").ask(PutRows(**{**header, **changes}), timeout_seconds=5)
    assert dock.client("watch").stats().refused == {"malformed": 1}


def test_a_share_that_is_no_pair_is_malformed(make_dock) -> None:
    claim = ClaimRows(request="1", batch="t", whole_groups=False, share=[1, 2, 3, 4])  # type: ignore[arg-type]

    with pytest.raises(DockRefused, match=r"ClaimRows: .* of length 2 to 3, got 4 - at `\$.share`"):
        raw_channel(make_dock(), "controller/reward").ask(claim, timeout_seconds=5)


async def test_notices_that_do_not_fit_end_the_connection(make_dock) -> None:
    refused: list[str] = []

    def forget(index: int, notices: Notices) -> None:
        raise KeyError("batch")

    link = Subscription(
        index=0,
        address=("127.0.0.1", 1),
        hello=HELLO,
        subscribe=WISH,
        on_snapshot=lambda index, snapshot: None,
        on_notices=forget,
    )
    peer = Peer(
        on_frame=link._on_frame,
        on_lost=lambda peer: None,
        on_malformed=lambda peer, error: refused.append(str(error)),
    )
    peer.trusted = True
    link._on_frame(peer, Frame(FrameKind.DONE, pack_value({"role": "w"})))
    snapshot = Snapshot(epoch="e.0", batches=[], rows=[])
    link._on_frame(peer, Frame(FrameKind.DONE, pack_value(snapshot)))

    with pytest.raises(Exception, match="notices do not fit: KeyError 'batch'"):
        link._on_frame(peer, Frame(FrameKind.NOTICE, pack_value(Notices())))
    await link.stop()


def test_many_puts_are_told_in_messages_that_are_not_long(make_dock, rows_of, monkeypatch) -> None:
    monkeypatch.setattr("rljob_runtime.dock.warehouse.broadcast.ROWS", 10)
    told: list[list[int]] = []
    take = ControllerServer._take_notices

    def listen(self, warehouse: int, notices: Notices) -> None:
        told.append([len(unpack_numbers(rows.numbers)) for rows in notices.rows])
        take(self, warehouse, notices)

    monkeypatch.setattr(ControllerServer, "_take_notices", listen)
    dock = make_dock(graph=StateGraph(states=(State(name="generate", needs=("prompt",)),)))
    feeder, worker = dock.client("feed"), dock.client("generate")
    feeder.put_rows("s", rows_of("s", groups=1, samples=1), total=1)
    worker.claim(
        "s", timeout_seconds=5
    )  # the controller has subscribed, before the put or after it
    told.clear()

    feeder.put_rows("t", rows_of("t", groups=6, samples=4), total=24)  # one notice is told whole
    for batch in ("u", "v", "w"):
        feeder.put_rows(batch, rows_of(batch, groups=2, samples=4), total=8)

    for batch, rows in {"t": 24, "u": 8, "v": 8, "w": 8}.items():
        assert len(worker.claim(batch, timeout_seconds=5).rows) == rows
    assert sorted(rows for message in told for rows in message) == [8, 8, 8, 24]
    assert all(sum(message) <= 10 or len(message) == 1 for message in told)


def test_a_controller_that_does_not_listen_is_cut_off(make_dock, rows_of, monkeypatch) -> None:
    monkeypatch.setattr("rljob_runtime.dock.warehouse.broadcast.MAX_UNSENT_BYTES", -1)
    dock = make_dock()

    dock.client("feed").put_rows("t", rows_of("t", groups=1, samples=1), total=1)

    assert len(dock.client("generate").claim("t", timeout_seconds=10).rows) == 1


def test_the_example_of_the_documentation_runs(capsys) -> None:
    example = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert example is not None and example[1].count("\n") < 30

    exec(compile(example[1], str(DOCS), "exec"), {"np": np})

    assert capsys.readouterr().out.strip() == "112"
