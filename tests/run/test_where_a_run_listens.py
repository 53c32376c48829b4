"""A run of one machine can be reached from it alone."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from whole_runs import DriverHere, run_while, wait_for_event

pytestmark = [pytest.mark.run]


def test_a_run_of_one_machine_listens_at_the_loopback_address_alone(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    listening: set[tuple[str, str]] = set()

    def look(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "run", "step", 1, driver)
        for process in psutil.Process(driver.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one that scores ends with its batch
                for each in process.net_connections("tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        listening.add((process.name(), each.laddr.ip))

    finished = run_while(job_file(steps=4, checkpoint={}), tmp_path / "run", beside=look)

    assert finished.code == 0, finished.output
    assert "DeviceWorker" in {name for name, _ in listening}
    assert {host for _, host in listening} == {"127.0.0.1"}, listening
