"""What the dock tells of its flow: who waited for whom, who read what of whom, rows by state."""

import asyncio
import threading
import time
from collections.abc import Callable

import numpy as np
from wait_until import wait_until

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.controller.claims import ClaimRequest
from rljob_runtime.dock.controller.waits import LOOK_SECONDS, ParkedClaim
from rljob_runtime.dock.stats import RowCounts
from rljob_runtime.record.dock_events import dock_event

PAUSE = 0.2


def during_a_wait(watcher: DockClient, act: Callable[[], object]) -> None:
    """Act once somebody has waited for the dock for PAUSE seconds."""

    def wait_and_act() -> None:
        wait_until("somebody waits", lambda: watcher.stats().waiting)
        time.sleep(PAUSE)
        act()

    threading.Thread(target=wait_and_act).start()


def test_a_claim_that_waits_for_two_states_tells_the_seconds_of_each(
    make_dock, rows_of, responses_of, rewards_of
) -> None:
    dock = make_dock()
    feeder, generate = dock.client("feed"), dock.client("generate")
    reward, update = dock.client("reward"), dock.client("update")
    waits = threading.Thread(target=lambda: update.claim("t", share=(0, 1), timeout_seconds=20))

    waits.start()
    wait_until("the claim waits", lambda: feeder.stats().waiting)
    time.sleep(PAUSE)
    feeder.put_rows("t", rows_of("t", groups=2, samples=2), total=4)
    made = generate.claim("t", timeout_seconds=5)
    time.sleep(2 * PAUSE)
    generate.write(made.rows, responses_of(made.rows))
    time.sleep(PAUSE)
    judged = reward.claim("t", timeout_seconds=5)
    reward.write(judged.rows, rewards_of(judged.rows))
    waits.join(20)
    told = update.take_traffic()

    assert list(told.waits) == ["feed", "generate", "reward"]
    assert told.waits["generate"] >= 2 * PAUSE - LOOK_SECONDS
    assert told.waits["reward"] >= PAUSE - LOOK_SECONDS
    assert sum(told.waits.values()) <= told.wait_seconds
    assert generate.take_traffic().waits == reward.take_traffic().waits == {}


def test_who_waits_for_rows_that_others_hold_waits_for_its_own_state(make_dock, rows_of) -> None:
    dock = make_dock()
    dock.client("feed").put_rows("t", rows_of("t", groups=1, samples=1), total=1)
    first, second = dock.client("generate", "first"), dock.client("generate", "second")
    held = first.claim("t", timeout_seconds=5)
    during_a_wait(dock.client("watch"), lambda: first.give_back(held.rows))

    second.claim("t", timeout_seconds=5)

    assert list(second.take_traffic().waits) == ["generate"]


def test_reads_writes_and_puts_are_timed(make_dock, rows_of, responses_of) -> None:
    dock = make_dock()
    feeder, generate = dock.client("feed"), dock.client("generate")

    began = time.monotonic()
    feeder.put_rows("t", rows_of("t", groups=1, samples=2), total=2)
    claim = generate.claim("t", timeout_seconds=5)
    claimed = generate.take_traffic()
    generate.read(claim.rows, ["prompt"])
    read = generate.take_traffic()
    generate.write(claim.rows, responses_of(claim.rows))
    written = generate.take_traffic()
    whole = time.monotonic() - began

    timed = [traffic.transfer_seconds for traffic in (feeder.take_traffic(), read, written)]
    assert claimed.transfer_seconds == 0
    assert min(timed) > 0
    assert sum(timed) < whole


async def test_changes_in_quick_succession_are_looked_at_once() -> None:
    looks = iter(["generate", "reward", "update"])
    waiting = ParkedClaim(
        request=ClaimRequest(owner="w", session="w", request="1", batch="t"),
        answer=asyncio.get_running_loop().create_future(),
        awaited_state=lambda: next(looks),
        since=10.0,
    )

    for now in (10.01, 10.02, 10.5, 10.51):
        waiting.attribute(now)

    assert waiting.finish(10.75) == {"reward": 0.75}


def test_a_state_tells_how_much_it_read_of_whom(
    make_dock, rows_of, responses_of, rewards_of
) -> None:
    dock = make_dock(warehouses=2)
    dock.client("feed").put_rows("t", rows_of("t", groups=2, samples=2), total=4)
    generate, reward = dock.client("generate"), dock.client("reward")
    made = generate.claim("t", share=(0, 1), timeout_seconds=5)
    extra = {"entropy": Ragged.from_rows([np.ones(1, dtype=np.float32)] * 4)}
    generate.write(made.rows, responses_of(made.rows) | extra)

    rows = reward.claim("t", share=(0, 1), timeout_seconds=5).rows
    reward.read(rows, ["prompt", "response"])
    with reward.view(rows[:2], ["logprobs", "entropy"]):
        pass
    told = dock_event(1, [{"reward": reward.take_traffic()}], dock.graph)

    prompts = 4 * sum(row.group_index + 1 for row in rows)
    tokens = 4 * sum(row.lengths["response"] for row in (*rows, *rows[:2]))
    assert {(edge.from_, edge.to): (edge.rows, edge.bytes) for edge in told.edges} == {
        ("feed", "reward"): (4, prompts),
        ("generate", "reward"): (4, tokens),
        ("other", "reward"): (2, 8),
    }
    assert told.states["reward"].bytes_read == sum(edge.bytes for edge in told.edges)


def test_each_state_tells_rows_that_lack_columns_are_ready_are_leased_and_are_done(
    make_dock, rows_of, responses_of
) -> None:
    dock = make_dock()
    watcher, generate = dock.client("watch"), dock.client("generate")
    dock.client("feed").put_rows("t", rows_of("t", groups=2, samples=3), total=6)
    claim = generate.claim("t", limit=5, timeout_seconds=5)
    generate.write(claim.rows[:2], {n: c.take([0, 1]) for n, c in responses_of(claim.rows).items()})
    dock.client("reward").claim("t", limit=1, timeout_seconds=5)

    told = watcher.rows_by_state(timeout_seconds=5)

    assert told == {
        "generate": RowCounts(lacking=0, ready=1, leased=3, acknowledged=2),
        "reward": RowCounts(lacking=4, ready=1, leased=1, acknowledged=0),
        "update": RowCounts(lacking=6, ready=0, leased=0, acknowledged=0),
    }


def test_a_producer_tells_how_long_it_waited_for_room(make_dock, rows_of) -> None:
    dock = make_dock(warehouses=2, capacity=16_000)
    feeder, watcher = dock.client("feed"), dock.client("watch")
    feeder.put_rows("t", rows_of("t", groups=4, samples=4, reserve_bytes=900), total=16)
    during_a_wait(watcher, lambda: watcher.drop_batch("t"))

    began = time.monotonic()
    feeder.put_rows("u", rows_of("u", groups=4, samples=4, reserve_bytes=900), total=16)
    took, waits = time.monotonic() - began, feeder.take_traffic().waits

    assert list(waits) == ["room"]
    assert PAUSE - LOOK_SECONDS <= waits["room"] <= took
