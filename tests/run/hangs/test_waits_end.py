"""Whoever waits for what never comes stops at a deadline, and says what was waited for."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rljob_runtime.children import line_child
from rljob_runtime.children.line_child import LineChild
from rljob_runtime.dock import local_servers as local
from rljob_runtime.dock.graph import State
from rljob_runtime.dock.local_servers import LocalDock
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.errors import DeadlineError, DockError
from rljob_runtime.models.one_maker import one_maker
from rljob_runtime.processes import calls, session
from rljob_runtime.processes.workers import Call
from rljob_runtime.record.folders import FileChunk, Folder
from rljob_runtime.run.hangs import switchboard
from rljob_runtime.run.hangs.switchboard import Switchboard
from rljob_runtime.task.tools import python_tool
from rljob_runtime.task.tools.answers import TookTooLong

CHILD = """
import json, os, sys, time
way = json.loads(sys.stdin.readline())["way"]
print("{}", flush=True)
if way == "reads nothing":
    time.sleep(60)
if way == "closes its output":
    os.close(1)
    time.sleep(60)
while way == "never ends its line":
    os.write(1, b"x")
for line in sys.stdin:
    print(json.dumps({"letters": len(json.loads(line)["text"])}), flush=True)
"""
LONG = {"text": "x" * 1_000_000}


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LineChild]:
    """A child process that behaves this way."""
    (tmp_path / "behaves.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda way: LineChild("behaves", f'{{"way": "{way}"}}')


@pytest.fixture
def ray_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(asked: Any, *, timeout: float) -> Any:
        raise ray.exceptions.GetTimeoutError("some object was not ready")

    monkeypatch.setattr(ray, "get", get)


@pytest.mark.parametrize("way", ["reads nothing", "never ends its line"])
def test_a_child_that_does_not_answer_costs_no_more_than_its_seconds(
    child: Callable[[str], LineChild], way: str
) -> None:
    asked = child(way)
    started = time.monotonic()

    asked.send(LONG)
    said = asked.answer(0.3)

    assert time.monotonic() - started < 30
    assert said["hung"]
    assert said["error"] == "took longer than 0.3 s (timeoutSeconds) and was killed"


def test_a_child_that_closed_its_output_is_killed(
    child: Callable[[str], LineChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = child("closes its output")
    monkeypatch.setattr(line_child, "END_SECONDS", 0.3)

    asked.send(LONG)
    said = asked.answer(60)

    assert not said["hung"]
    assert said["error"] == "closed its output, was there 0.3 s after it, and was killed"


def test_what_the_pipe_does_not_take_at_once_reaches_the_child(
    child: Callable[[str], LineChild],
) -> None:
    asked = child("answers")

    asked.send(LONG)
    asked.send({"text": "abc"})

    assert [asked.answer(60), asked.answer(60)] == [{"letters": 1_000_000}, {"letters": 3}]
    asked.kill()


def test_a_program_that_does_not_read_its_request_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deaf.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.setattr(python_tool, "PROGRAM", tmp_path / "deaf.py")

    with pytest.raises(TookTooLong):
        python_tool.run_python(LONG["text"], timeout_seconds=0.5, memory_bytes=1 << 29)


def test_another_maker_of_the_model_is_told_and_not_waited_for_for_ever(tmp_path: Path) -> None:
    file, said = tmp_path / "tiny" / "a.lock", list[str]()

    with (
        one_maker(file, said.append),
        pytest.raises(DeadlineError, match=rf"held {file} for 0.3 s.*`fuser {file}`"),
        one_maker(file, said.append, seconds=0.3),
    ):
        pass

    assert said == [f"waiting for another process that makes the built-in model ({file})"]
    with one_maker(file, said.append, seconds=0):
        pass


class Stuck:
    """A server that takes longer to start or to stop than anybody waits."""

    role = "warehouse/7"

    def __init__(self, where: str) -> None:
        self._where = where

    async def start(self) -> tuple[str, int]:
        await asyncio.sleep(2.0 if self._where == "start" else 0)
        return "here", 1

    async def stop(self) -> None:
        await asyncio.sleep(2.0 if self._where == "stop" else 0)


def test_a_server_that_does_not_listen_is_named() -> None:
    thread = ServerThread(Stuck("start"), seconds=0.2)

    with pytest.raises(DockError, match=r"warehouse/7 did not listen within 0\.2 s"):
        thread.start()


def test_a_server_that_does_not_stop_hides_no_error_of_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        ServerThread(Stuck("stop"), seconds=0.2),
    ):
        1 / 0  # noqa: B018

    assert "role=warehouse/7 did not stop within 0.2 s" in caplog.text


def test_a_dock_that_does_not_listen_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(silent))
    monkeypatch.setattr(local, "LISTEN_SECONDS", 0.2)

    with (
        pytest.raises(DockError, match=r"warehouse/0 did not listen within 0\.2 s"),
        LocalDock([State(name="use", needs=("data",))]),
    ):
        pass


def test_a_switchboard_that_is_stuck_has_nobodys_report(
    board: Switchboard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(switchboard, "GRACE_SECONDS", 0.1)
    board._server._loop.call_soon_threadsafe(time.sleep, 1.0)

    assert board.ask(seconds=0.1) == {}
    assert "did not answer within 0.2 s" in caplog.text


def test_a_file_on_a_pod_that_is_gone_is_named(tmp_path: Path, ray_never_answers: None) -> None:
    folder = Folder(Path("/pod/step-000003"), (FileChunk("model.safetensors", None),))

    with pytest.raises(DeadlineError, match=r"model.safetensors of /pod/step-000003 .* within 2 s"):
        folder.copy_to(tmp_path, seconds=2.0)


def test_results_that_do_not_come_are_an_error_of_their_stage() -> None:
    ended: Call = Future()
    ended.set_result("trained")

    with pytest.raises(DeadlineError, match=r"1 of 2 processes \(update\) did .* 0 s") as late:
        calls.answers("update", [ended, Future()], seconds=0.1)

    assert late.value.stage == "update"


def test_a_ray_that_does_not_end_does_not_keep_the_run_from_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = SimpleNamespace(shutdown=lambda: time.sleep(1.0))
    monkeypatch.setattr(ray, "shutdown", lambda: stuck.shutdown())

    assert not session.end_ray(0.1)
    assert "ray.shutdown did not end within 0.1 s" in caplog.text

    stuck.shutdown = lambda: None
    assert session.end_ray(30)
