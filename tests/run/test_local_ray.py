"""Ray on one machine has the processes that a run asks something, and no others."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import _raylet

from rljob_runtime.errors import WorkerError
from rljob_runtime.processes import local_ray, quiet_agent
from rljob_runtime.processes.local_ray import start_ray

NODE = "ab12"
RAYLET: Any = _raylet  # its stub lacks the names


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """agent(pid of the raylet): the agent as a raylet starts it, for two ports."""
    started = []

    def start(raylet: int) -> subprocess.Popen[bytes]:
        arguments = ["one_port,another_port", "agent.py", f"--session-dir={tmp_path}", "--head"]
        environment = {"RAY_NODE_ID": NODE, "RAY_RAYLET_PID": str(raylet)}
        command = [sys.executable, "-IS", quiet_agent.__file__, *arguments]
        started.append(subprocess.Popen(command, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(said: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_quiet_agent_says_that_its_ports_are_not_in_use_and_stays_with_the_raylet(
    agent: Callable[[int], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    mine = agent(psutil.Process().pid)
    files = [tmp_path / f"{port}_{NODE}" for port in ("one_port", "another_port")]

    wait_for(lambda: all(file.exists() for file in files))

    assert [file.read_text() for file in files] == ["-1", "-1"]
    assert mine.poll() is None


def test_the_quiet_agent_of_a_raylet_that_is_gone_ends(
    agent: Callable[[int], subprocess.Popen[bytes]],
) -> None:
    assert agent(1).wait(timeout=60) == 0


@pytest.fixture
def small_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # with it alone, Ray makes the file
    RAYLET.Config.initialize("")  # as when Ray is imported
    start_ray(num_cpus=1, object_store_memory=100 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


def commands() -> set[str]:
    """Programs and scripts that run below this process."""
    words = [
        Path(word).name
        for process in psutil.Process().children(recursive=True)
        for word in process.cmdline()[:4]
        if "/ray/" in word or word == quiet_agent.__file__
    ]
    return set(words)


class LateNode:
    """Ray's word for a node that has not come up, so many times; then the node."""

    def __init__(self, times: int) -> None:
        self._left = times

    def __call__(self, gcs_address: str, node_id: str) -> str:
        if self._left:
            self._left -= 1
            raise RuntimeError("no such node")
        return f"{node_id} of {gcs_address}"


def test_a_node_that_comes_up_late_is_waited_for() -> None:
    assert local_ray.wait_for_node_info(LateNode(2), "here:1", NODE) == f"{NODE} of here:1"


def test_a_node_that_never_comes_up_is_told_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ray, "START_SECONDS", 1.0)

    with pytest.raises(WorkerError, match="did not come up within 1 s; end other work"):
        local_ray.wait_for_node_info(LateNode(10_000), "here:1", NODE)


@pytest.mark.ray
def test_ray_works_without_its_monitors_its_dashboard_and_a_token_that_others_read(
    small_ray: None, tmp_path: Path
) -> None:
    @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
    def host() -> str:
        return socket.gethostname()

    answered = ray.get(host.remote(), timeout=100)

    assert answered == socket.gethostname()
    assert {"gcs_server", "raylet", "quiet_agent.py"} <= commands()
    assert RAYLET.get_authentication_mode() == RAYLET.AuthenticationMode.TOKEN
    assert not list(tmp_path.glob(".ray/*"))
    assert commands() & {"monitor.py", "log_monitor.py", "dashboard.py", "agent.py"} == set()
