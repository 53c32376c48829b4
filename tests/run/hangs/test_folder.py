"""What a deadline leaves: a folder with everybody's stacks and the dock, an event, a longer error."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rljob_api.spec.infrastructure import RemoteStorage
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.controller.controller_server import ControllerServer
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer
from rljob_runtime.errors import (
    ConfigError,
    DeadlineError,
    DockLost,
    DockTimeout,
    stage_of_deadline,
)
from rljob_runtime.processes.hangs.dock_state import DockQuestion
from rljob_runtime.processes.hangs.reporter import start_reporter
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.remote import RemoteRun, open_remote
from rljob_runtime.run.hangs.dump import Hangs
from rljob_runtime.run.hangs.request import answering_requests, ask_run
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.hangs.switchboard import Switchboard

GRAPH = StateGraph(
    states=(
        State(name="generate", needs=("prompt",), writes=("response",)),
        State(name="reward", needs=("response",), writes=("reward",)),
    )
)
BATCH = "train/1"


@pytest.fixture
def dock(run: DockAddress) -> Iterator[DockAddress]:
    """A warehouse and two controllers; device-0 holds one of two rows and the reward worker waits."""
    common: dict[str, Any] = {"graph": GRAPH, "token": run.token}
    warehouse = ServerThread(WarehouseServer(index=0, capacity_bytes=1 << 20, **common))
    place = warehouse.start()
    controllers = {
        state: ServerThread(ControllerServer(state=state, warehouses=[place], **common))
        for state in GRAPH.names
    }
    places = {state: thread.start() for state, thread in controllers.items()}
    yield DockAddress(
        token=run.token, warehouses=(place,), controllers=places, switchboard=run.switchboard
    )
    for thread in [*controllers.values(), warehouse]:
        thread.stop()


def put(dock: DockAddress, *, rows: int) -> None:
    with DockClient(dock, state="feed", owner="feeder") as feeder:
        prompt = np.ones(3, dtype=np.int32)
        feeder.put_rows(
            BATCH,
            [
                NewRow(uid=f"{i}", group=f"{i}", group_index=i, columns={"prompt": prompt})
                for i in range(rows)
            ],
            total=rows,
        )


def hangs_of(folder: Path, board: Switchboard, run: DockAddress) -> Hangs:
    log = EventLog(folder / "events.jsonl")
    return Hangs(folder=folder, events=log, switchboard=board, run=run, seconds=2.0)


def events_in(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_the_dock_tells_who_holds_what_and_who_waits_for_whom(
    tmp_path: Path, board: Switchboard, run: DockAddress, dock: DockAddress
) -> None:
    put(dock, rows=2)
    holder = DockClient(dock, state="generate", owner="device-0")
    assert len(holder.claim(BATCH, limit=1, timeout_seconds=20).rows) == 1
    waiter = DockClient(dock, state="reward", owner="reward-0")

    def wait() -> None:
        with pytest.raises(DockLost):
            waiter.claim(BATCH, timeout_seconds=60)

    waits = threading.Thread(target=wait)
    waits.start()
    start_reporter("reward-0", run)
    hangs = hangs_of(tmp_path, board, run)
    hangs.dock = lambda: dock
    hangs.expected = lambda: ["device-0", "reward-0"]
    while not DockQuestion(dock, seconds=5.0).answers()["controller/reward"].get("waiting"):
        pass
    while not board.ask(seconds=5.0):
        pass

    hang = hangs.dump("reward", "it is late")

    assert hang.folder is not None
    told = json.loads((hang.folder / "dock.json").read_text())
    (lease,) = told["controller/generate"]["leases"]
    assert (lease["owner"], lease["rows"]) == ("device-0", {BATCH: 1})
    rows = told["controller/generate"]["batches"][BATCH]["rows"]
    assert rows == {"lacking": 0, "ready": 1, "leased": 1}
    (claim,) = told["controller/reward"]["waiting"]
    assert (claim["owner"], claim["awaits"]) == ("reward-0", "generate")
    assert told["controller/reward"]["batches"][BATCH]["lacking_columns"] == {"response": 2}
    assert told["warehouse/0"]["batches"][BATCH]["columns"] == {"prompt": 2}
    summary = (hang.folder / "summary.txt").read_text()
    assert "state generate: device-0 holds 1 rows of train/1" in summary
    assert f"reward-0: waits {claim['waited_seconds']:.1f}"[:16] in summary
    assert "held by device-0" in summary
    holder.drop_batch(BATCH)
    waits.join()
    holder.close()
    waiter.close()


def test_a_server_that_is_not_there_delays_nobody(dock: DockAddress) -> None:
    gone = DockAddress(
        token=dock.token, warehouses=(("127.0.0.1", 1),), controllers=dict(dock.controllers)
    )

    told = DockQuestion(gone, seconds=0.5).answers()

    assert "error" in told["warehouse/0"]
    assert told["controller/generate"]["state"] == "generate"


def test_a_deadline_leaves_a_folder_an_event_and_its_place_in_the_error(
    tmp_path: Path, board: Switchboard, run: DockAddress
) -> None:
    start_reporter("device-0", run)
    while not board.ask(seconds=5.0):
        pass
    hangs = hangs_of(tmp_path, board, run)
    hangs.expected = lambda: ["device-0", "device-1"]

    with pytest.raises(DeadlineError) as caught, hangs.at_deadlines(), hangs.at_deadlines():
        raise DeadlineError("1 of 2 workers did not finish within 5 s", stage="generate")

    (folder,) = (tmp_path / "hangs").iterdir()
    assert folder.name.endswith("-generate")
    files = {file.name for file in folder.iterdir()}
    assert files == {"device-0.txt", "driver.txt", "dock.json", "summary.txt"}
    assert str(caught.value).startswith(
        "1 of 2 workers did not finish within 5 s; missing: device-1"
    )
    assert str(caught.value).endswith(f"stacks and dock: {folder}")
    assert all(run.token not in file.read_text() for file in folder.iterdir())
    (event,) = events_in(tmp_path)
    assert (event["kind"], event["stage"], event["folder"]) == ("hang", "generate", str(folder))
    assert {"process": "device-1", "why": "has not started, or did not come to the driver"} in (
        event["missing"]
    )


def test_a_deadline_of_the_operators_leaves_its_folder_beside_the_copied_records(
    tmp_path: Path, board: Switchboard, run: DockAddress
) -> None:
    remote = open_remote(RemoteStorage(uri=f"file://{tmp_path}/remote"), "runs/mine")
    hangs = hangs_of(tmp_path, board, run)
    hangs.expected = lambda: ["device-1"]
    requests = StacksRequests(remote=remote)
    early = requests.ask("activeDeadlineSeconds", "it did not end")
    requests.dump = hangs.dump

    told = requests.ask("progressDeadlineSeconds", "no step ended")

    assert early.startswith("it had no workers to be asked; its driver was in ")
    (copied,) = (tmp_path / "remote/runs/mine/hangs").iterdir()
    assert copied.name.endswith("-progressDeadlineSeconds")
    assert {file.name for file in copied.iterdir()} == {"driver.txt", "dock.json", "summary.txt"}
    assert told.startswith("missing: device-1 has not started")
    assert told.endswith(f"stacks and dock: {remote.uri}/hangs/{copied.name}")


class Recording:
    """A file system that remembers what it is told to put, and fails from the call `fault` on."""

    def __init__(self, fault: int | None = None) -> None:
        self.puts: list[list[str]] = []
        self._fault = fault

    def exists(self, path: str) -> bool:
        return any(path in put for put in self.puts)

    def put(self, sources: list[str], targets: list[str]) -> None:
        if len(self.puts) == self._fault:
            raise OSError("the line is dead")
        self.puts.append(targets)

    def put_file(self, source: str, target: str, callback: object) -> None:
        self.put([source], [target])


def hang_folder(run: Path, name: str, files: int) -> Path:
    folder = run / "hangs" / name
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"device-{number}.txt").write_text("stands")
    (folder / "summary.txt").write_text("late")
    return folder


def test_the_newest_stacks_are_copied_first_and_many_files_at_once(tmp_path: Path) -> None:
    hang_folder(tmp_path, "20260101-000000-update", 3)
    newest = hang_folder(tmp_path, "20260102-000000-sync", 400)
    fs = Recording()
    remote = RemoteRun(fs=fs, root="runs/mine", uri="x://runs/mine", seconds=60)

    remote.put_hangs(tmp_path)

    assert len(fs.puts) < 15
    there = [path.removeprefix("runs/mine/hangs/") for put in fs.puts for path in put]
    assert there[-1] == "20260101-000000-update/summary.txt"
    assert there[400] == "20260102-000000-sync/summary.txt"
    assert set(there[:401]) == {f"{newest.name}/{file.name}" for file in newest.iterdir()}
    remote.put_hangs(tmp_path)
    assert len(there) == sum(map(len, fs.puts))


@pytest.mark.parametrize(
    ("fault", "told"), [(2, "x://runs/mine/hangs/20260102-000000-sync"), (0, "not copied: ")]
)
def test_only_a_failed_copy_of_its_own_stacks_is_told_by_a_deadline(
    tmp_path: Path, fault: int, told: str
) -> None:
    hang_folder(tmp_path, "20260101-000000-update", 3)
    newest = hang_folder(tmp_path, "20260102-000000-sync", 3)
    remote = RemoteRun(fs=Recording(fault), root="runs/mine", uri="x://runs/mine", seconds=60)
    requests = StacksRequests(remote=remote)
    requests.dump = lambda stage, why: SimpleNamespace(folder=newest, missing_text="late", waits="")

    assert told in requests.ask("progressDeadlineSeconds", "no step ended")


def test_an_error_that_is_no_deadlines_is_left_alone(
    tmp_path: Path, board: Switchboard, run: DockAddress
) -> None:
    hangs = hangs_of(tmp_path, board, run)

    with pytest.raises(DockLost, match=r"^rows are gone$"), hangs.at_deadlines():
        raise DockLost("rows are gone")

    assert not (tmp_path / "hangs").exists()


def test_a_folder_that_cannot_be_written_changes_no_error(
    tmp_path: Path, board: Switchboard, run: DockAddress
) -> None:
    (tmp_path / "hangs").write_text("a file is in the way")

    hang = hangs_of(tmp_path, board, run).dump("sync", "it is late")

    assert hang.folder is None
    assert "stacks" not in hang.reason


def test_the_oldest_folder_goes_for_a_new_one(
    tmp_path: Path, board: Switchboard, run: DockAddress
) -> None:
    for i in range(25):
        (tmp_path / "hangs" / f"20000101-0000{i:02}-update").mkdir(parents=True)

    hang = hangs_of(tmp_path, board, run).dump("update", "it is late")

    left = sorted(folder.name for folder in (tmp_path / "hangs").iterdir())
    assert len(left) == 20
    assert hang.folder is not None
    assert left[-1] == hang.folder.name


@pytest.mark.parametrize(
    ("error", "stage"),
    [
        (DeadlineError("late", stage="sync"), "sync"),
        (DockTimeout("state update waited 5 s"), "dock"),
        (RuntimeError("Timed out waiting 60000ms for recv operation to complete"), "collective"),
        (RuntimeError("Connection closed by peer"), ""),
        (DockLost("batch train/1 was dropped"), ""),
    ],
)
def test_a_deadline_is_known_by_its_error(error: Exception, stage: str) -> None:
    assert stage_of_deadline(error) == stage


RUN = """
import sys, time
from pathlib import Path
from rljob_runtime.run.hangs.request import answering_requests
folder = Path(sys.argv[1])
def dump(stage, why):
    found = folder / "hangs" / f"now-{stage}"
    found.mkdir(parents=True)
    (found / "summary.txt").write_text(why)
with answering_requests(folder, dump):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_living_run_is_asked_by_its_folder_and_a_dead_one_refuses(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = ask_run(tmp_path)
        process.communicate("")

    assert (found / "summary.txt").read_text() == "asked for"
    assert process.returncode == 0
    with pytest.raises(
        ConfigError, match=r"no run lives there; the last stacks are in .*now-asked"
    ):
        ask_run(tmp_path)


def test_a_signal_is_answered_in_a_thread_and_the_run_names_its_process_only_while_it_lives(
    tmp_path: Path,
) -> None:
    asked = threading.Event()

    with answering_requests(tmp_path, lambda stage, why: asked.set()):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert asked.wait(60)

    assert not (tmp_path / "driver.json").exists()


def test_a_folder_that_takes_no_file_changes_no_error_and_the_signal_is_given_back(
    tmp_path: Path,
) -> None:
    (tmp_path / "driver.json").mkdir()  # can be neither written nor unlinked
    before = signal.getsignal(signal.SIGUSR1)

    with (
        pytest.raises(DockLost, match="rows are gone"),
        answering_requests(tmp_path, lambda stage, why: None),
    ):
        raise DockLost("rows are gone")

    assert signal.getsignal(signal.SIGUSR1) is before
