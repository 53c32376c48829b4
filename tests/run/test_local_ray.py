"""Ray on one machine has the processes that a run asks something, and no others."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray

from rljob_runtime import quiet_agent
from rljob_runtime.local_ray import start_ray

NODE = "ab12"


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
def small_ray() -> Iterator[None]:
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


@pytest.mark.ray
def test_ray_works_without_its_monitors_and_its_dashboard(small_ray: None) -> None:
    @ray.remote(num_cpus=0)
    def host() -> str:
        return socket.gethostname()

    answered = ray.get(host.remote(), timeout=100)

    assert answered == socket.gethostname()
    assert {"gcs_server", "raylet", "quiet_agent.py"} <= commands()
    assert commands() & {"monitor.py", "log_monitor.py", "dashboard.py", "agent.py"} == set()
