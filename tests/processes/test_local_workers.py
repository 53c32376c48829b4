"""Workers that are forked on this machine: what becomes of one that cannot be forked again."""

import os
import threading
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.errors import WorkerFailed
from rljob_runtime.processes.local_workers import LocalWorkers


class Mortal:
    def die(self) -> None:
        os._exit(3)

    def live(self) -> None:
        pass


def test_workers_that_are_replaced_leave_no_open_files(tmp_path: Path) -> None:
    with LocalWorkers(folder=tmp_path) as workers:

        def replaced() -> int:
            """Files that are open once a worker has come and gone."""
            worker: Any = workers.start(Mortal, home={})
            worker.live().result(timeout=60)
            workers.end(worker)
            del worker
            deadline = time.monotonic() + 60
            while any(t.name.startswith("calls-of-") for t in threading.enumerate()):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return len(os.listdir("/proc/self/fd"))

        replaced()

        assert replaced() == replaced() == replaced()


def test_a_worker_whose_forks_are_refused_is_dead_and_ends_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: ForkServerProcess) -> None:
        raise ConnectionRefusedError("nobody forks any more")

    with LocalWorkers(folder=tmp_path) as workers:
        worker: Any = workers.start(Mortal, home={}, name="mortal", restarts=True)
        monkeypatch.setattr(ForkServerProcess, "start", refused)
        with pytest.raises(WorkerFailed, match="mortal died with exit code 3"):
            worker.die().result(timeout=60)
        with pytest.raises(WorkerFailed, match="mortal died"):
            worker.die().result(timeout=60)

        assert workers.dead([worker]) == [True]
