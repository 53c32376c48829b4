"""Real processes and SIGKILL: controllers, warehouses and workers die; the batch still ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.local_servers import LocalDock
from rljob_runtime.errors import DockError, DockLost, DockTimeout

WORKER = """
import json, sys, time
from rljob_runtime.dock.client import DockAddress, DockClient
address = DockAddress.from_json(json.load(sys.stdin))
client = DockClient(address, state="generate", owner="doomed")
claim = client.claim("t", limit=4, timeout_seconds=20)
print(len(claim.rows), flush=True)
time.sleep(60)
"""

OWNER = """
import time
from rljob_runtime.dock.graph import State
from rljob_runtime.dock.local_servers import LocalDock
with LocalDock([State(name="a", needs=())]) as dock:
    print(*[process.pid for process in dock._processes.values()], flush=True)
    time.sleep(60)
"""


@pytest.fixture
def local_dock(graph):
    docks = []

    def make(**options):
        docks.append(LocalDock(graph.states, **options).__enter__())
        return docks[-1]

    yield make
    for dock in docks:
        dock.close()


def run_state(client: DockClient, columns_of, effects: Counter) -> None:
    """Work until the state is done with the batch; counts rows whose write took effect."""
    while True:
        claim = client.claim("t", limit=3, timeout_seconds=30)
        if claim.done:
            return
        time.sleep(0.005)
        if columns_of is None:
            client.acknowledge(claim.rows)
            effects.update(row.uid for row in claim.rows)
        else:
            duplicates = client.write(claim.rows, columns_of(claim.rows)).duplicates
            effects.update({row.uid for row in claim.rows} - set(duplicates))


def test_killed_controllers_learn_all_again_and_no_row_is_lost_or_used_twice(
    local_dock, rows_of, responses_of, rewards_of
) -> None:
    dock = local_dock(warehouses=2)
    total = 240
    dock.client("feed", "f").put_rows("t", rows_of("t", groups=60, samples=4), total=total)
    effects = {state: Counter() for state in ("generate", "reward", "update")}
    work = {"generate": responses_of, "reward": rewards_of, "update": None}
    threads = [
        threading.Thread(
            target=run_state, args=(dock.client(state, f"{state}-0"), work[state], effects[state])
        )
        for state in work
    ]
    for thread in threads:
        thread.start()

    for state in ("reward", "generate", "update"):
        time.sleep(0.2)
        dock.kill(f"controller/{state}")
        dock.start(f"controller/{state}")
    for thread in threads:
        thread.join(40)

    assert not any(thread.is_alive() for thread in threads)
    uids = {row.uid for row in rows_of("t", groups=60, samples=4)}
    for state in work:
        assert effects[state] == dict.fromkeys(uids, 1), state
    dock.client("watch", "w").assert_empty()


def test_a_lease_outlives_its_controller(local_dock, rows_of, responses_of) -> None:
    dock = local_dock()
    dock.client("feed", "f").put_rows("t", rows_of("t", groups=2, samples=2), total=4)
    holder, other = dock.client("generate", "holder"), dock.client("generate", "other")
    claim = holder.claim("t", limit=3, timeout_seconds=10)

    dock.kill("controller/generate")
    dock.start("controller/generate")
    deadline = time.monotonic() + 10
    while dock.client("watch", "w").stats().leased < 3 and time.monotonic() < deadline:
        time.sleep(0.05)

    assert len(other.claim("t", timeout_seconds=10).rows) == 1
    assert holder.write(claim.rows, responses_of(claim.rows)).stored == 3


def worker_with_four_rows(dock) -> subprocess.Popen[str]:
    """A process that has claimed the four rows of the dock."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(json.dumps(dock.address.to_json()))
    worker.stdin.close()
    assert worker.stdout.readline().strip() == "4"
    return worker


def test_a_killed_workers_rows_go_to_others_at_once(local_dock, rows_of) -> None:
    dock = local_dock()
    dock.client("feed", "f").put_rows("t", rows_of("t", groups=2, samples=2), total=4)
    worker = worker_with_four_rows(dock)

    worker.kill()
    worker.wait()
    worker.stdout.close()
    started = time.monotonic()
    claim = dock.client("generate", "heir").claim("t", timeout_seconds=20)

    assert [row.attempt for row in claim.rows] == [2] * 4
    assert time.monotonic() - started < 5


def test_a_frozen_workers_rows_go_to_others_when_its_lease_expires(local_dock, rows_of) -> None:
    dock = local_dock(lease_seconds=1.0)
    dock.client("feed", "f").put_rows("t", rows_of("t", groups=2, samples=2), total=4)
    worker = worker_with_four_rows(dock)

    os.kill(worker.pid, signal.SIGSTOP)
    try:
        claim = dock.client("generate", "heir").claim("t", timeout_seconds=20)
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()

    assert [row.attempt for row in claim.rows] == [2] * 4
    assert dock.client("watch", "w").stats().servers["controller/generate"]["expired"] == 1


def test_rows_lost_with_their_warehouse_are_told_and_can_be_put_again(
    local_dock, rows_of, responses_of
) -> None:
    dock = local_dock(warehouses=2)
    feeder, generate = dock.client("feed", "f"), dock.client("generate", "g")
    feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8)
    held = generate.claim("t", share=(0, 1), timeout_seconds=10)

    dock.kill("warehouse/1")
    dock.start("warehouse/1")

    with pytest.raises(DockLost, match="is not in this warehouse"):
        generate.read(held.rows, ["prompt"])
    generate.give_back(held.rows)
    assert "4 of 8 rows of t were lost with their warehouse" in claim_until(generate, lost=True)
    assert feeder.put_rows("t", rows_of("t", groups=4, samples=2), total=8) == 4
    claim = claim_until(generate, lost=False)
    assert generate.write(claim.rows, responses_of(claim.rows)).stored == 8


def claim_until(client: DockClient, *, lost: bool):
    """Claim all rows until the controller has heard of the loss, or of its repair."""
    for _ in range(200):
        try:
            claim = client.claim("t", share=(0, 1), timeout_seconds=10)
            if not lost:
                return claim
            client.give_back(claim.rows)
        except DockLost as error:
            if lost:
                return str(error)
        time.sleep(0.05)
    raise AssertionError("the controller heard nothing")


def test_a_client_waits_for_a_server_that_restarts(local_dock, rows_of) -> None:
    dock = local_dock()
    feeder = dock.client("feed", "f")
    assert feeder.stats().rows == 0
    dock.kill("warehouse/0")
    thread = threading.Thread(target=lambda: (time.sleep(0.5), dock.start("warehouse/0")))
    thread.start()

    stored = feeder.put_rows("t", rows_of("t", groups=1, samples=2), total=2)
    thread.join()

    assert stored == 2
    assert len(dock.client("generate", "g").claim("t", timeout_seconds=10).rows) == 2


def test_a_server_that_stays_away_is_named(local_dock) -> None:
    dock = local_dock()
    client = dock.client("generate", "g", timeout_seconds=0.3)
    dock.kill("controller/generate")

    with pytest.raises(DockTimeout, match=r"claim waited 0\.3 s for controller/generate"):
        client.claim("t", timeout_seconds=0.3)


def test_a_controller_without_its_warehouse_says_so(local_dock) -> None:
    dock = local_dock()
    dock.kill("warehouse/0")
    dock.kill("controller/generate")
    dock.start("controller/generate")

    with pytest.raises(DockTimeout, match="warehouse 0 has not been reached by this controller"):
        dock.client("generate", "g").claim("t", timeout_seconds=0.3)


def test_a_server_that_cannot_start_is_an_error(local_dock) -> None:
    dock = local_dock()
    dock.kill("warehouse/0")

    with (
        socket.create_server(dock.address.warehouses[0]),
        pytest.raises(DockError, match="warehouse/0 ended with exit code 1 before it listened"),
    ):
        dock.start("warehouse/0")


def test_servers_end_with_the_process_that_started_them(graph) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]

    owner.kill()
    owner.wait()
    owner.stdout.close()

    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_token_is_never_on_a_command_line(local_dock) -> None:
    dock = local_dock()

    lines = [
        Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in dock._processes.values()
    ]

    assert len(lines) == 4
    assert all(dock.address.token.encode() not in line for line in lines)
    assert all(b"rljob_runtime.dock.serve" in line for line in lines)
