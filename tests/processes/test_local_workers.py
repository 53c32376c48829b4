"""Workers that are forked on this machine: what becomes of one that cannot be forked again."""

import os
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.errors import WorkerFailed
from rljob_runtime.processes.local_workers import LocalWorkers


class Mortal:
    def die(self) -> None:
        os._exit(3)


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
