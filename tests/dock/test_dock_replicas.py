"""Rows that are held twice: a warehouse that dies comes back with all of them."""

import logging
import threading
import time

import numpy as np
import pytest
from forked_docks import ForkedDock
from mortal_dock import MortalDock
from stored_rows import live_uids
from wait_until import wait_until

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.dock.warehouse.store_copy import StoreCopy
from rljob_runtime.errors import DockFull, DockLost, DockTimeout


@pytest.fixture
def make_mortal(graph):
    docks = []

    def make(**options) -> MortalDock:
        docks.append(MortalDock(graph=graph, replicas=2, **options).__enter__())
        return docks[-1]

    yield make
    for dock in docks:
        dock.__exit__()


def replicated(dock: MortalDock) -> bool:
    servers = dock.client("watch").stats().servers
    return all(servers[f"warehouse/{i}"]["replicated"] for i in range(dock.warehouses))


def claim_rows(client: DockClient, batch: str, count: int) -> list[RowMeta]:
    """So many rows: a claim has those that its controller has heard of, which one warehouse may tell later
    than another."""
    rows: list[RowMeta] = []
    while len(rows) < count:
        rows += client.claim(batch, limit=count - len(rows), timeout_seconds=10).rows
    return rows


def in_step(dock: MortalDock) -> None:
    wait_until("every warehouse is replicated", lambda: replicated(dock))


def test_a_killed_warehouse_comes_back_with_its_rows_columns_and_acknowledgements(
    make_mortal, rows_of, responses_of
) -> None:
    dock = make_mortal()
    in_step(dock)
    feeder, generate = dock.client("feed"), dock.client("generate")
    feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8)
    rows = claim_rows(generate, "t", 5)
    generate.write(rows, responses_of(rows), version=3)

    for role in ("warehouse/0", "warehouse/1"):
        dock.kill(role)
        dock.start(role)
        in_step(dock)

    assert feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8) == 0
    assert generate.write(rows, responses_of(rows)).stored == 0
    assert len(claim_rows(generate, "t", 3)) == 3
    judged = claim_rows(dock.client("reward"), "t", 5)
    assert {row.uid for row in judged} == {row.uid for row in rows}
    assert {row.version for row in judged} == {3}
    expected = dict(zip([r.uid for r in rows], responses_of(rows)["response"].rows(), strict=True))
    found = dock.client("reward").read(judged, ["response", "prompt"])
    for row, response, prompt in zip(
        judged, found["response"].rows(), found["prompt"].rows(), strict=True
    ):
        assert np.array_equal(response, expected[row.uid])
        assert prompt.tolist() == [row.group_index] * (row.group_index + 1)


def test_clients_wait_for_a_warehouse_that_is_away(make_mortal, rows_of) -> None:
    dock = make_mortal()
    in_step(dock)
    dock.client("feed").put_rows("t", rows_of("t", groups=2, samples=2), total=4)
    rows = claim_rows(dock.client("generate"), "t", 4)
    dock.kill("warehouse/0")
    dock.kill("warehouse/1")
    dock.start("warehouse/0")

    with pytest.raises(DockTimeout, match=r"read waited 0\.5 s for warehouse/[01]"):
        dock.client("generate", timeout_seconds=0.5).read(rows, ["prompt"])


def test_without_its_standby_a_warehouse_goes_on_and_seeds_it_again(
    make_mortal, rows_of, responses_of, caplog
) -> None:
    caplog.set_level(logging.WARNING)
    dock = make_mortal()
    in_step(dock)
    feeder, generate = dock.client("feed"), dock.client("generate")
    feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8)
    held = [row for row in claim_rows(generate, "t", 8) if row.warehouse == 0]

    dock.kill("warehouse/1")
    assert generate.write(held, responses_of(held)).stored == 4
    alone = dock.server("warehouse/0").replication()
    dock.start("warehouse/1")
    in_step(dock)
    dock.kill("warehouse/0")
    dock.start("warehouse/0")

    assert alone["replicated"] is False and alone["times_alone"] == 1
    assert "warehouse/0 goes on alone: rows are held once" in caplog.text
    assert generate.write(held, responses_of(held)).duplicates == tuple(r.uid for r in held)
    assert feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8) == 0


def test_when_both_copies_are_gone_the_loss_is_told(make_mortal, rows_of) -> None:
    dock = make_mortal()
    in_step(dock)
    feeder, generate = dock.client("feed"), dock.client("generate")
    feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8)
    rows = claim_rows(generate, "t", 8)

    dock.kill("warehouse/0")
    dock.kill("warehouse/1")
    dock.start("warehouse/0")
    dock.start("warehouse/1")

    with pytest.raises(DockLost, match="is not in this warehouse"):
        generate.read(rows, ["prompt"])
    generate.give_back(rows)
    assert feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8) == 8


def test_rows_that_were_left_behind_do_not_come_back(make_mortal, rows_of, responses_of) -> None:
    dock = make_mortal(warehouses=2)
    in_step(dock)
    feeder, generate, reward = (dock.client(state) for state in ("feed", "generate", "reward"))
    feeder.put_rows("t", rows_of("t", groups=1, samples=2), total=2)
    port = dock.gates["warehouse/1"].cut()
    wait_until("warehouse 0 is alone", lambda: not dock.server("warehouse/0")._link.replicated)
    claim = generate.claim("t", timeout_seconds=10)
    generate.write(claim.rows, responses_of(claim.rows))
    wait_until("the controller heard of it", lambda: _seen(dock, "generate")[-1].endswith(".1"))

    dock.kill("warehouse/0")
    dock.gates["warehouse/1"].behind = port
    dock.start("warehouse/0")

    wait_until("warehouse 0 starts over", lambda: dock.server("warehouse/0").epoch.endswith(".0"))
    wait_until("the old rows are gone", lambda: not dock.server("warehouse/0").store.num_rows)
    with pytest.raises(DockLost, match="2 of 2 rows of t were lost"):
        for _ in range(200):
            reward.give_back(reward.claim("t", timeout_seconds=10).rows)
            time.sleep(0.02)


def _seen(dock: MortalDock, state: str) -> list[str]:
    return dock.server(f"controller/{state}")._subscriptions[0]._epochs


def test_a_predecessor_that_still_lives_is_not_listened_to(make_mortal, rows_of) -> None:
    dock = make_mortal()
    in_step(dock)
    dock.client("feed").put_rows("t", rows_of("t", groups=1, samples=2), total=2)
    old = dock.threads["warehouse/0"]
    dock.start("warehouse/0")
    in_step(dock)

    wait_until("the old one is refused", lambda: not old.server._link.replicated)
    held = dock.server("warehouse/1")._standby
    assert held.store.num_rows == 2
    time.sleep(0.3)
    assert old.server._link.replicated is False
    assert replicated(dock)
    old.stop()


def test_a_full_warehouse_and_its_standby_stay_the_same(make_mortal, rows_of, responses_of) -> None:
    dock = make_mortal(capacity=8_000)
    in_step(dock)
    feeder = dock.client("feed")
    rows = rows_of("t", groups=8, samples=2, reserve_bytes=500)
    stored = 0
    for group in range(8):
        part = rows[2 * group : 2 * group + 2]
        try:
            stored += feeder.put_rows("t", part, total=16, timeout_seconds=0.1)
        except DockFull:
            continue
    generate = dock.client("generate")
    claim = generate.claim("t", limit=3, timeout_seconds=10)
    generate.write(claim.rows, responses_of(claim.rows))

    assert 0 < stored < 16
    for index in (0, 1):
        own = dock.server(f"warehouse/{index}").store
        copy = dock.server(f"warehouse/{1 - index}")._standby.store
        assert copy.charged_bytes == own.charged_bytes
        assert live_uids(copy) == live_uids(own)
        assert copy.notices == []


def test_a_dropped_batch_is_dropped_at_the_standby_too(make_mortal, rows_of) -> None:
    dock = make_mortal()
    in_step(dock)
    feeder = dock.client("feed")
    feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8)
    assert feeder.drop_batch("t") == 8

    dock.kill("warehouse/0")
    dock.start("warehouse/0")

    with pytest.raises(DockLost, match="batch t was dropped"):
        feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8)
    feeder.assert_empty()


def test_changes_during_the_seeding_reach_the_standby(
    make_mortal, rows_of, responses_of, monkeypatch
) -> None:
    chunks, held_back = StoreCopy.chunks, threading.Event()

    def one_at_a_time(copy: StoreCopy):
        for chunk in chunks(copy, chunk_bytes=1):
            yield chunk
            time.sleep(0.02 if held_back.is_set() else 0)

    monkeypatch.setattr(StoreCopy, "chunks", one_at_a_time)
    dock = make_mortal()
    in_step(dock)
    feeder, generate = dock.client("feed"), dock.client("generate")
    feeder.put_rows("t", rows_of("t", groups=8, samples=2), total=16)
    rows = [row for row in claim_rows(generate, "t", 16) if row.warehouse == 0]
    held_back.set()
    dock.kill("warehouse/1")
    dock.start("warehouse/1")
    link = dock.server("warehouse/0")._link
    wait_until("the seeding has begun", lambda: link._backlog is not None)

    generate.write(rows[:3], responses_of(rows[:3]))
    answered_during_the_seeding = link._backlog is not None
    in_step(dock)
    dock.kill("warehouse/0")
    dock.start("warehouse/0")

    assert answered_during_the_seeding
    assert generate.write(rows, responses_of(rows)).duplicates == tuple(r.uid for r in rows[:3])


def test_two_copies_need_two_warehouses(graph) -> None:
    with pytest.raises(ValueError, match="replicas=2 needs 2 warehouses or more, there is 1"):
        ForkedDock(graph.states, replicas=2)


def test_a_killed_process_comes_back_with_its_rows(graph, rows_of, responses_of) -> None:
    with ForkedDock(graph.states, warehouses=2, replicas=2) as dock:
        feeder, generate = dock.client("feed", "f"), dock.client("generate", "g")
        wait_until(
            "both are replicated",
            lambda: all(
                server["replicated"]
                for role, server in feeder.stats().servers.items()
                if role.startswith("warehouse")
            ),
        )
        feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8)
        claim = generate.claim("t", share=(0, 1), timeout_seconds=10)

        dock.kill("warehouse/1")
        dock.start("warehouse/1")

        prompts = generate.read(claim.rows, ["prompt"])["prompt"]
        assert isinstance(prompts, Ragged) and len(prompts) == 8
        assert generate.write(claim.rows, responses_of(claim.rows)).stored == 8
