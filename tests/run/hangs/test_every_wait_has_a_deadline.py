"""No call of what ships waits without a deadline, but for those that are named here with the reason."""

from collections import defaultdict
from pathlib import Path

import pytest
from waits import unbounded

ROOT = Path(__file__).parents[3]
SHIPPED = ("crds", "operator", "runtime", "images", "examples")
COLLECTIVES = (
    "devices/wire.py",
    "parallel/",
    "update/",
    "rollout/parallel_rollout/",
    "weights/reshard/exchange.py",
)
"""Of the runtime: `wait` of what is under way there is bounded by the timeout of its group, which has one."""
RIGHT: dict[str, dict[str, str]] = {
    # Who waits for work, by design, until its process, its connection or its task ends.
    "operator/rljob_device_plugin/service.py": {
        "Service._list_and_watch": "the kubelet's call, which the kubelet ends"
    },
    "operator/rljob_operator/watch/lease.py": {
        "LeaderLease.run": "a second operator waits as long as the first works",
        "LeaderLease._within": "for a pause, too, which is the deadline",
    },
    "operator/rljob_operator/main.py": {
        "Operator._lead": "until it leads or is stopped by a signal",
        "Operator._pass": "until all kinds were listed, which readiness tells of, or a signal stops it",
        "Operator._work": "until a part breaks or a signal stops it",
        "_first": "until the first of what it is given",
    },
    "operator/rljob_operator/watch/queue.py": {
        "KeyedQueue.run": "until it is stopped or a part breaks",
        "KeyedQueue._work_on": "for the next job; `run` wakes it with STOP",
        "KeyedQueue._release": "for the next timer; `run` cancels it",
        "KeyedQueue._within": "for a pause, too, which is the deadline",
    },
    "runtime/rljob_runtime/devices/presence.py": {
        "Presence._listen": "a daemon thread that hears the other ranks until its socket is closed",
        "Presence._accept": "its socket has a timeout",
        "Presence.await_all": "it is done: `_ended` said so",
        "Presence._begin.wait": "bounded by its group's timeout",
        "_run_waits": "a daemon thread, for the next wait; `close` ends it",
    },
    "runtime/rljob_runtime/dock/controller/subscription.py": {
        "Subscription._run": "until the warehouse's connection ends; `stop` cancels it"
    },
    "runtime/rljob_runtime/dock/probe.py": {
        "serve": "a server for measurements, which whoever started it ends"
    },
    "runtime/rljob_runtime/dock/thread.py": {"ServerThread._serve": "serves until `stop`"},
    "runtime/rljob_runtime/dock/warehouse/warehouse_server.py": {
        "WarehouseServer._greet_later": "the client has a deadline, and ends its request at it",
        "WarehouseServer._reply_after_replication": "the client has a deadline, and ends its request at it",
    },
    "runtime/rljob_runtime/dock/wire/peer.py": {
        "Peer.send": "for room in a connection, whose end sets it",
        "Peer._writable": "for room in a connection, whose end cancels it",
    },
    "runtime/rljob_runtime/dock/wire/wire_server.py": {
        "DockServer.stop": "its connections are closed; `ServerThread.stop` has a deadline"
    },
    "runtime/rljob_runtime/report/tracking/trackers.py": {
        "_Feed._next": "a daemon thread, for the next message; `join` has a deadline"
    },
    "runtime/rljob_runtime/cli/watch_command.py": {"_serve": "until Ctrl-C"},
    "runtime/rljob_runtime/cli/bring_up/on_ranks.py": {
        "_check_collectives": "a group with a timeout, in a process that is killed at its check's deadline"
    },
    # What is waited for has a deadline of its own.
    "runtime/rljob_runtime/devices/cpu.py": {
        "ThreadStream.queue": "copies, and collectives with their group's timeout",
        "ThreadMark.hold_main": "copies, and collectives with their group's timeout",
        "ThreadMark.wait": "copies, and collectives with their group's timeout",
    },
    "runtime/rljob_runtime/devices/host_swap.py": {
        "OffloadedTensors.release": "a copy between host and device"
    },
    "runtime/rljob_runtime/dock/clients/connections.py": {
        "Connections.each": "requests with a deadline each, and none may go on behind an error"
    },
    "runtime/rljob_runtime/weights/reshard/executor.py": {
        "Resharder._run": "exchanges with their group's timeout"
    },
    "runtime/rljob_runtime/weights/reshard/peers.py": {
        "Listening._accept": "its socket has a timeout"
    },
    "runtime/rljob_runtime/weights/reshard/swap.py": {
        "SwappedTensors.leave.finish": "a copy between host and device"
    },
    "runtime/rljob_runtime/task/rewards/scorer_pool.py": {
        "RewardPool.score": "each score has its reward's timeoutSeconds"
    },
    # What does not wait, and has the name of what does.
    "operator/rljob_operator/kube/kube_client.py": {"Kube.__init__": "a setting"},
    "operator/rljob_operator/log.py": {"JsonLines.format": "a context variable"},
    "runtime/rljob_runtime/dock/aio.py": {"AsyncDockClient._return": "it is done"},
    "runtime/rljob_runtime/processes/clock.py": dict.fromkeys(
        ("unix_seconds", "monotonic", "sleep", "wait"), "a context variable"
    ),
    "runtime/rljob_runtime/update/update_megatron/engine.py": {
        "_join": "a group of one rank, which meets nobody"
    },
}


def test_every_wait_has_a_deadline() -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    refused = []
    for file in sorted(file for folder in SHIPPED for file in (ROOT / folder).rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        collective = name.removeprefix("runtime/rljob_runtime/").startswith(COLLECTIVES)
        for function, call, line in unbounded(file.read_text()):
            if collective and call.endswith(".wait()"):
                continue
            found[name].add(function)
            if function not in RIGHT.get(name, {}):
                refused.append(f"{name}:{line} {function}: {call}")

    assert not refused, (
        "these wait without a deadline; give them one, and an error that tells of it"
    )
    unneeded = [
        f"{name}: {function}" for name in RIGHT for function in set(RIGHT[name]) - found[name]
    ]
    assert not unneeded, "these have a deadline, or are gone; leave them out of RIGHT"


@pytest.mark.parametrize(
    "call",
    [
        "ray.get(calls)",
        "ray.wait(calls, num_returns=2)",
        "ray.get(calls, timeout=None)",
        "event.wait()",
        "thread.join(None)",
        "self.pool.submit(work).result()",
        "lock.acquire()",
        "queue.get()",
        "wait(futures)",
        "subprocess.run(command, check=True)",
        "process.communicate(text)",
        "urllib.request.urlopen(request)",
        "fcntl.flock(file, fcntl.LOCK_EX)",
        "dist.init_process_group('gloo', rank=0)",
        "dist.new_group([0, 1])",
        "select.select([pipe], [], [])",
        "self._selector.select()",
        "socket.create_connection(address)",
        "asyncio.run_coroutine_threadsafe(ask(), loop).result()",
    ],
)
def test_a_wait_without_a_deadline_is_seen(call: str) -> None:
    assert [found[1] for found in unbounded(f"def ask():\n    {call}")] == [call]


@pytest.mark.parametrize(
    "call",
    [
        "ray.get(calls, timeout=3)",
        "event.wait(seconds)",
        "thread.join(timeout=1)",
        "', '.join(names)",
        "settings.get('name')",
        "wait(futures, 5)",
        "subprocess.run(command, timeout=3)",
        "urlopen(request, timeout=seconds)",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "select.select([pipe], [], [], 1.0)",
        "selector.select(left)",
        "socket.create_connection(address, 3)",
        "await asyncio.wait_for(event.wait(), 3)",
        "async with asyncio.timeout(3):\n        await queue.get()",
        "task.result()",
        "requests.get('memory')",
    ],
)
def test_a_wait_with_a_deadline_is_not(call: str) -> None:
    assert not [*unbounded(f"async def ask():\n    {call}")]


def test_a_request_without_a_deadline_is_seen() -> None:
    assert [*unbounded("import requests\n\nrequests.get(url)")] == [("", "requests.get(url)", 3)]


@pytest.mark.parametrize(
    "call", ["await event.wait()", "await asyncio.wait_for(event.wait(), None)"]
)
def test_a_coroutine_that_waits_without_a_deadline_is_seen(call: str) -> None:
    assert [found[1] for found in unbounded(f"async def ask():\n    {call}")] == ["event.wait()"]
