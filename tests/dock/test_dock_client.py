"""Client and servers together over sockets: the whole way of a row, refusals, back pressure."""

import asyncio
import contextlib
import dataclasses
import itertools
import socket
import threading
import time
from functools import partial

import numpy as np
import pytest
from dock_conversations import packed, sealed
from wait_until import wait_until

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer
from rljob_runtime.dock.wire import tcp
from rljob_runtime.dock.wire.channel import Channel, ClientIdentity
from rljob_runtime.dock.wire.frames import FrameKind, pack_head
from rljob_runtime.dock.wire.messages import AskControllerStats, AskWarehouseStats
from rljob_runtime.dock.wire.peer import READ_BYTES, STRANGER_BYTES
from rljob_runtime.errors import DockError, DockFull, DockLost, DockRefused, DockTimeout


def test_a_row_goes_all_the_way_and_leaves_nothing(
    make_dock, rows_of, responses_of, rewards_of
) -> None:
    dock = make_dock(warehouses=3)
    feeder, generate = dock.client("feed"), dock.client("generate")
    reward, update = dock.client("reward"), dock.client("update")

    stored = feeder.put_rows("t", rows_of("t", groups=4, samples=3), total=12)
    again = feeder.put_rows("t", rows_of("t", groups=4, samples=3), total=12)
    claim = generate.claim("t", share=(0, 1), timeout_seconds=5)
    prompts = generate.read(claim.rows, ["prompt"])["prompt"]
    written = generate.write(claim.rows, responses_of(claim.rows), version=3)
    scored = 0
    while not (part := reward.claim("t", limit=4, whole_groups=True, timeout_seconds=5)).done:
        lengths = reward.read(part.rows, ["response"])["response"].lengths.tolist()
        assert lengths == [1 + row.group_index * 3 + row.sample for row in part.rows]
        assert [row.lengths["response"] for row in part.rows] == lengths
        assert len({row.group for row in part.rows}) == 1 and len(part.rows) == 3
        scored += reward.write(part.rows, rewards_of(part.rows)).stored
    last = update.claim("t", timeout_seconds=5)
    update.acknowledge(last.rows)
    update.acknowledge(last.rows)

    assert (stored, again, written.stored, scored) == (12, 0, 12, 12)
    assert [row.uid for row in claim.rows] == [f"t/{g}/{s}" for g in range(4) for s in range(3)]
    assert [values.tolist() for values in prompts.rows()] == [
        [row.group_index] * (row.group_index + 1) for row in claim.rows
    ]
    assert {row.version for row in last.rows} == {3}
    assert update.claim("t", timeout_seconds=5).done
    feeder.assert_empty()
    assert feeder.stats().bytes == 0


def test_shares_cut_a_batch_without_overlap_whatever_the_order(make_dock, rows_of) -> None:
    dock = make_dock(warehouses=2)
    dock.client("feed").put_rows("t", rows_of("t", groups=5, samples=2), total=10)

    claims = {
        rank: dock.client("generate", f"g{rank}").claim("t", share=(rank, 3), timeout_seconds=5)
        for rank in (2, 0, 1)
    }

    assert {rank: [row.uid for row in claims[rank].rows] for rank in claims} == {
        rank: [f"t/{g}/{s}" for g in range(5) if g % 3 == rank for s in range(2)]
        for rank in range(3)
    }


def test_an_evaluation_batch_skips_update(make_dock, rows_of, responses_of, rewards_of) -> None:
    dock = make_dock()
    states = ("generate", "reward")
    dock.client("feed").put_rows("e", rows_of("e", groups=1, samples=2), total=2, states=states)

    claim = (generate := dock.client("generate")).claim("e", timeout_seconds=5)
    generate.write(claim.rows, responses_of(claim.rows))
    claim = (reward := dock.client("reward")).claim("e", timeout_seconds=5)
    reward.write(claim.rows, rewards_of(claim.rows))

    assert dock.client("update").claim("e", timeout_seconds=5).done
    reward.assert_empty("e")


def test_a_claim_waits_for_rows_and_wakes_at_once(make_dock, rows_of) -> None:
    dock = make_dock()
    waits: list[float] = []

    def wait() -> None:
        rows = dock.client("generate").claim("t", timeout_seconds=10).rows
        waits.append(time.monotonic())
        assert len(rows) == 2

    thread = threading.Thread(target=wait)
    thread.start()
    feeder = dock.client("feed")
    wait_until("the claim waits", lambda: feeder.stats().waiting)
    feeder.put_rows("t", rows_of("t", groups=1, samples=2), total=2)
    put_at = time.monotonic()
    thread.join(5)

    assert waits and waits[0] - put_at < 1.0


def test_a_claim_that_waits_in_vain_says_for_what(make_dock, rows_of, responses_of) -> None:
    dock = make_dock()
    dock.client("feed").put_rows("t", rows_of("t", groups=2, samples=2), total=4)
    generate = dock.client("generate", "rollout-1")
    claim = generate.claim("t", limit=1, timeout_seconds=5)
    generate.write(claim.rows, responses_of(claim.rows))
    reward = dock.client("reward", "reward-0")
    reward.claim("t", timeout_seconds=5)

    expected = (
        r"state reward waited 0\.2 s for rows of t: 3 of 4 rows lack column response; reward-0"
    )
    with pytest.raises(DockTimeout, match=expected):
        reward.claim("t", timeout_seconds=0.2)


def test_a_leaving_worker_gives_its_rows_back_at_once(make_dock, rows_of) -> None:
    dock = make_dock()
    dock.client("feed").put_rows("t", rows_of("t", groups=1, samples=4), total=4)
    first = dock.client("generate", "a")
    assert len(first.claim("t", timeout_seconds=5).rows) == 4

    first.close()
    again = dock.client("generate", "b").claim("t", timeout_seconds=5)

    assert [row.attempt for row in again.rows] == [2] * 4


def test_a_supervisor_can_declare_an_owner_dead(make_dock, rows_of) -> None:
    dock = make_dock()
    feeder = dock.client("feed")
    feeder.put_rows("t", rows_of("t", groups=1, samples=4), total=4)
    dock.client("generate", "a").claim("t", timeout_seconds=5)

    assert feeder.owner_gone("a") == 4
    assert len(dock.client("generate", "b").claim("t", timeout_seconds=5).rows) == 4


def test_rows_given_back_are_claimed_by_others(make_dock, rows_of) -> None:
    dock = make_dock()
    dock.client("feed").put_rows("t", rows_of("t", groups=1, samples=4), total=4)
    first, second = dock.client("generate", "a"), dock.client("generate", "b")
    claim = first.claim("t", timeout_seconds=5)

    first.give_back(claim.rows[:3])

    assert len(second.claim("t", timeout_seconds=5).rows) == 3
    assert first.renew(claim.lease, claim.rows) == tuple(row.uid for row in claim.rows[:3])


def test_leases_are_renewed_while_the_worker_lives(make_dock, rows_of, monkeypatch) -> None:
    monkeypatch.setattr("rljob_runtime.dock.clients.keeper.RENEWALS_PER_LEASE", 600)
    dock = make_dock(lease_seconds=60.0)
    dock.client("feed").put_rows("t", rows_of("t", groups=1, samples=2), total=2)
    first, second = dock.client("generate", "a"), dock.client("generate", "b")
    first.claim("t", timeout_seconds=5)
    (controller,) = [t.server for t in dock.threads if t.server.role == "controller/generate"]
    (lease,) = controller.ledger.leases.values()

    first_deadline = lease.deadline
    wait_until("the lease is renewed", lambda: lease.deadline > first_deadline)
    second_deadline = lease.deadline
    wait_until("the lease is renewed again", lambda: lease.deadline > second_deadline)

    with pytest.raises(DockTimeout, match="a holds 2 rows"):
        second.claim("t", timeout_seconds=0.1)


def test_a_late_write_and_a_late_acknowledgement_have_no_effect(
    make_dock, rows_of, responses_of, rewards_of
) -> None:
    dock = make_dock()
    feeder = dock.client("feed")
    feeder.put_rows("t", rows_of("t", groups=1, samples=2), total=2)
    slow, quick = dock.client("generate", "slow"), dock.client("generate", "quick")
    stale = slow.claim("t", timeout_seconds=5)
    feeder.owner_gone("slow")
    fresh = quick.claim("t", timeout_seconds=5)

    first = quick.write(fresh.rows, responses_of(fresh.rows, 1))
    late = slow.write(stale.rows, responses_of(stale.rows, 2))
    reward = dock.client("reward")
    claim = reward.claim("t", timeout_seconds=5)

    assert (first.stored, late.stored, len(late.foreign)) == (2, 0, 2)
    assert set(reward.read(claim.rows, ["response"])["response"].values.tolist()) == {1}
    reward.write(claim.rows, rewards_of(claim.rows))
    update, other = dock.client("update", "u"), dock.client("update", "v")
    mine = update.claim("t", timeout_seconds=5)
    feeder.owner_gone("u")
    other.acknowledge(other.claim("t", timeout_seconds=5).rows)
    with pytest.raises(DockRefused, match=r"2 of 2 rows were acknowledged under another lease"):
        update.acknowledge(mine.rows)


def test_rows_of_two_leases_go_into_one_write(make_dock, rows_of, responses_of) -> None:
    dock = make_dock(warehouses=2)
    dock.client("feed").put_rows("t", rows_of("t", groups=4, samples=1), total=4)
    generate = dock.client("generate")
    rows = [
        *generate.claim("t", limit=3, timeout_seconds=5).rows,
        *generate.claim("t", limit=3, timeout_seconds=5).rows,
    ]

    assert generate.write(rows, responses_of(rows)).stored == 4
    reward = dock.client("reward")
    lengths = {
        row.uid: row.lengths["response"] for row in reward.claim("t", timeout_seconds=5).rows
    }
    assert lengths.items() <= {row.uid: i + 1 for i, row in enumerate(rows)}.items()


def test_a_full_dock_parks_producers_until_rows_are_freed(
    make_dock, rows_of, responses_of, rewards_of
) -> None:
    dock = make_dock(capacity=16_000)
    total = 60
    put = threading.Thread(
        target=lambda: dock.client("feed").put_rows(
            "t", rows_of("t", groups=30, samples=2, reserve_bytes=100), total=total
        )
    )
    put.start()
    watcher = dock.client("watch")
    wait_until("the put waits", lambda: watcher.stats().waiting)
    assert 0 < watcher.stats().rows < total
    generate, reward, update = (dock.client(s) for s in ("generate", "reward", "update"))
    seen = 0
    while seen < total:
        claim = generate.claim("t", limit=4, whole_groups=True, timeout_seconds=5)
        generate.write(claim.rows, responses_of(claim.rows))
        claim = reward.claim("t", timeout_seconds=5)
        reward.write(claim.rows, rewards_of(claim.rows))
        claim = update.claim("t", timeout_seconds=5)
        update.acknowledge(claim.rows)
        seen += len(claim.rows)
        assert watcher.stats().bytes <= 16_000
    put.join(5)

    assert not put.is_alive()
    watcher.assert_empty("t")


def test_a_dock_that_stays_full_names_the_stuck_state(make_dock, rows_of) -> None:
    dock = make_dock(capacity=16_000)

    with pytest.raises(DockFull, match=r"warehouse/0 stayed full for .* state generate has not"):
        dock.client("feed").put_rows(
            "t", rows_of("t", groups=60, samples=2), total=120, timeout_seconds=0.3
        )


def test_a_parked_put_ends_when_its_batch_is_dropped(make_dock, rows_of) -> None:
    dock = make_dock(capacity=16_000)
    failures: list[Exception] = []

    def put() -> None:
        try:
            dock.client("feed").put_rows("t", rows_of("t", groups=60, samples=2), total=120)
        except DockLost as error:
            failures.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    watcher = dock.client("watch")
    wait_until("the put waits", lambda: watcher.stats().waiting)
    freed = watcher.drop_batch("t")
    thread.join(5)

    assert freed > 0 and "was dropped" in str(failures[0])
    with pytest.raises(DockLost, match="batch t was dropped"):
        dock.client("generate").claim("t", timeout_seconds=5)


def test_two_docks_do_not_see_each_other(make_dock, rows_of) -> None:
    ours, theirs = make_dock(token="ours"), make_dock(token="theirs")
    ours.client("feed").put_rows("t", rows_of("t", groups=1, samples=1), total=1)
    stranger = DockAddress(
        token="theirs", warehouses=ours.address.warehouses, controllers=ours.address.controllers
    )
    ours_seen_by_them = theirs.client("generate")

    with pytest.raises(DockTimeout, match="no row of it was put"):
        ours_seen_by_them.claim("t", timeout_seconds=0.1)
    theirs.address = stranger
    with pytest.raises(DockRefused, match="wrong token"):
        theirs.client("generate").claim("t", timeout_seconds=5)
    assert ours.client("watch").stats().refused["token"] >= 1
    assert "theirs" not in repr(stranger)


def test_a_server_at_a_wrong_address_is_refused(make_dock) -> None:
    dock = make_dock()
    address = DockAddress(
        token="secret",
        warehouses=dock.address.warehouses,
        controllers={"generate": dock.address.controllers["reward"]},
    )
    channel = Channel(
        role="controller/generate",
        find=lambda: address,
        identity=ClientIdentity(owner="a", session="s"),
    )

    with pytest.raises(DockRefused, match="controller/generate was looked for at the address of"):
        channel.ask(AskControllerStats(), timeout_seconds=5)


def hello(role: str = "warehouse/0") -> bytes:
    return packed(FrameKind.HELLO, {"token": "secret", "role": role, "owner": "x", "session": "y"})


def unreadable(kind: int, header: bytes) -> bytes:
    return pack_head(kind, len(header), 0) + sealed(header)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: dock\r\n\r\n",
        pack_head(1, 1 << 20, 0),
        unreadable(1, b"\xc1\xc1\xc1"),
        packed(FrameKind.STATS, {}),
        packed(FrameKind.HELLO, {"token": 7}),
        hello("warehouse/5"),
        hello() + packed(FrameKind.CLAIM, {}),
        hello() + packed(FrameKind.PUT_ROWS, {}),
        hello() + packed(FrameKind.WRITE, {"columns": [{"name": "x"}]}),
        hello() + packed(FrameKind.READ, {"uids": "all"}),
        hello() + unreadable(12, b"\x00\x01\x02\x03"),
        hello() + packed(FrameKind.READ, {"uids": [1], "columns": []}),
    ],
)
def test_what_is_no_request_is_refused_counted_and_survived(make_dock, sent: bytes) -> None:
    dock = make_dock()
    with socket.create_connection(dock.address.warehouses[0], timeout=5) as raw:
        raw.sendall(sent)
        while raw.recv(65536):
            continue

    refused = dock.client("watch").stats().refused
    assert sum(refused.values()) >= 1  # a lost client of another test may find its port in use anew


def test_random_bytes_never_stop_a_server(make_dock, rows_of) -> None:
    dock = make_dock()
    rng = np.random.default_rng(1)
    good = (
        hello()
        + packed(FrameKind.STATS, {})
        + packed(FrameKind.READ, {"uids": ["a"], "columns": ["b"]})
    )
    places = [*dock.address.warehouses, *dock.address.controllers.values()]

    for trial in range(120):
        data = bytearray(good if trial % 2 else rng.bytes(int(rng.integers(1, 300))))
        for place in rng.integers(0, len(data), size=3):
            data[place] = rng.integers(0, 256)
        with socket.create_connection(places[trial % len(places)], timeout=5) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)

    feeder = dock.client("feed")
    assert feeder.put_rows("t", rows_of("t", groups=1, samples=2), total=2) == 2
    assert len(dock.client("generate").claim("t", timeout_seconds=5).rows) == 2


def test_a_second_request_before_the_answer_is_refused(make_dock) -> None:
    dock = make_dock()
    claim = {"request": "1", "batch": "t", "whole_groups": False, "timeout": 30.0}
    with socket.create_connection(dock.address.controllers["reward"], timeout=5) as raw:
        raw.sendall(hello("controller/reward"))
        raw.recv(65536)
        raw.sendall(packed(FrameKind.CLAIM, claim))
        time.sleep(0.1)
        raw.sendall(packed(FrameKind.CLAIM, claim))
        while raw.recv(65536):
            continue

    assert dock.client("watch").stats().refused == {"malformed": 1}
    assert dock.client("watch").stats().waiting == 0


def test_a_silent_connection_is_closed(make_dock, monkeypatch) -> None:
    dock = make_dock()
    assert dock.client("watch").stats().refused == {}  # controllers are greeted
    with monkeypatch.context() as impatient:
        impatient.setattr("rljob_runtime.dock.wire.wire_server.HELLO_SECONDS", 0.1)
        with socket.create_connection(dock.address.warehouses[0], timeout=30) as raw:
            assert raw.recv(1) == b""

    assert dock.client("watch").stats().refused == {"silent": 1}


def test_many_silent_connections_make_room_for_others_and_take_little_memory(
    make_dock, monkeypatch
) -> None:
    dock = make_dock()
    server, place = dock.threads[0].server, dock.address.warehouses[0]
    assert dock.client("watch").stats().refused == {}  # controllers are greeted

    with monkeypatch.context() as crowded, contextlib.ExitStack() as still_open:
        crowded.setattr("rljob_runtime.dock.wire.wire_server.STRANGERS", 3)
        crowded.setattr("rljob_runtime.dock.wire.wire_server.PATIENCE_SECONDS", -1.0)
        connect = partial(socket.create_connection, place, timeout=30)
        silent = [still_open.enter_context(connect()) for _ in range(3)]
        wait_until("they are connected", lambda: sum(p._open for p in set(server._strangers)) == 3)
        silent += [still_open.enter_context(connect()) for _ in range(2)]
        ended = [one.recv(1) for one in silent[:2]]
        held = {peer.trusted: len(peer._buffer) for peer in set(server.peers)}

    assert ended == [b"", b""]
    assert held == {False: STRANGER_BYTES, True: READ_BYTES}
    assert STRANGER_BYTES * 16 < READ_BYTES
    assert dock.client("watch").stats().refused == {"silent": 2}


def test_an_error_inside_a_server_is_answered_and_counted(make_dock, monkeypatch) -> None:
    dock = make_dock()
    monkeypatch.setattr(
        "rljob_runtime.dock.warehouse.store.WarehouseStore.drop_batch", lambda store, batch: 1 / 0
    )
    client = dock.client("feed")

    with pytest.raises(DockError, match="warehouse/0 failed: ZeroDivisionError"):
        client.drop_batch("t")
    assert client.stats().refused == {"internal": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, "it is at least 1"),
        ({"limit": 0, "share": (0, 2)}, "it is at least 1"),
        ({"share": (2, 2)}, "rank is from 0 to 1"),
    ],
)
def test_wrong_claims_are_refused(make_dock, arguments, message) -> None:
    client = make_dock().client("generate")

    with pytest.raises(DockRefused, match=message):
        client.claim("t", timeout_seconds=5, **arguments)


def test_wrong_calls_are_refused_before_anything_is_sent(make_dock, rows_of) -> None:
    dock = make_dock()
    feeder, generate = dock.client("feed"), dock.client("generate")
    rows = rows_of("t", groups=1, samples=2)
    feeder.put_rows("t", rows, total=2)
    claim = generate.claim("t", timeout_seconds=5)

    with pytest.raises(DockRefused, match="state 'feed' has no controller"):
        feeder.claim("t", timeout_seconds=5)
    with pytest.raises(ValueError, match="column response has 1 rows, the write 2"):
        column = Ragged.from_rows([np.zeros(1, dtype=np.int32)])
        generate.write(claim.rows, {"response": column, "logprobs": column})
    with pytest.raises(ValueError, match="a group has one"):
        feeder.put_rows("u", [rows[0], NewRow(uid="x", group="t/0", group_index=4)], total=2)
    with pytest.raises(DockError, match=r"2 rows of t are still in the dock.*'generate': 2"):
        feeder.assert_empty("t")


def test_large_columns_arrive_whole(make_dock, rows_of) -> None:
    dock = make_dock(capacity=256 << 20, warehouses=2)
    rng = np.random.default_rng(3)
    dock.client("feed").put_rows("t", rows_of("t", groups=16, samples=1), total=16)
    generate, reward = dock.client("generate"), dock.client("reward")
    claim = generate.claim("t", share=(0, 1), timeout_seconds=5)
    tokens = Ragged.from_rows(
        [rng.integers(0, 1 << 30, size=n * 40_000).astype(np.int32) for n in range(16)]
    )
    logprobs = Ragged(values=tokens.values.astype(np.float32), lengths=tokens.lengths)

    generate.write(claim.rows, {"response": tokens, "logprobs": logprobs})
    rows = reward.claim("t", share=(0, 1), timeout_seconds=5).rows
    back = reward.read(rows, ["logprobs", "response"])

    assert [*back] == ["logprobs", "response"]
    assert np.array_equal(back["response"].values, tokens.values)
    assert np.array_equal(back["logprobs"].values, logprobs.values)


def test_a_client_that_reaches_nobody_says_so() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = probe.getsockname()
        address = DockAddress(token="t", warehouses=(place,), controllers={})
        channel = Channel(
            role="warehouse/0",
            find=lambda: address,
            identity=ClientIdentity(owner="a", session="s"),
        )

        with pytest.raises(DockTimeout, match=r"stats waited 0\.2 s for warehouse/0"):
            channel.ask(AskWarehouseStats(), timeout_seconds=0.2)


def test_a_client_of_a_pod_that_is_gone_goes_on_at_the_next_ones_address(
    make_dock, lost_pod, monkeypatch
) -> None:
    monkeypatch.setattr(tcp, "CONNECT_SECONDS", 0.2)
    dock = make_dock()
    lost = dataclasses.replace(dock.address, warehouses=(lost_pod,))
    told = itertools.chain([lost] * 3, itertools.repeat(dock.address))
    channel = Channel(
        role="warehouse/0",
        find=lambda: next(told),
        identity=ClientIdentity(owner="a", session="s"),
    )

    answer = channel.ask(AskWarehouseStats(), timeout_seconds=30)

    channel.close()
    assert answer.role == "warehouse/0"


def test_a_taken_port_is_an_error_of_start(graph) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = WarehouseServer(
            index=0,
            graph=graph,
            capacity_bytes=1000,
            token="t",
            port=taken.getsockname()[1],
        )

        with pytest.raises(OSError, match="address already in use"):
            ServerThread(server).start()


async def test_a_server_that_never_started_can_stop(graph) -> None:
    server = WarehouseServer(index=0, graph=graph, capacity_bytes=1000, token="t")

    await server.stop()
    await asyncio.sleep(0)


def test_an_address_survives_json(make_dock) -> None:
    address = make_dock(warehouses=2).address

    assert DockAddress.from_json(address.to_json()) == address
