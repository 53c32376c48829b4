"""The probe: one process serves, another writes and reads, and prints one line of figures."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROBE = [sys.executable, "-m", "rljob_runtime.dock.probe"]
HOST = "127.0.0.2"
"""As in a pod: what serves there does not serve at 127.0.0.1 too."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    directory = tmp_path_factory.mktemp("dock")
    process = subprocess.Popen(
        [*PROBE, "serve", "--host", HOST, "--port", "0", "--directory", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    yield ["--address", f"{HOST}:{said['port']}", "--controller-port", str(said["controller_port"])]
    process.terminate()
    process.wait()
    process.stdout.close()
    assert [path.suffix for path in Path(directory).iterdir()] == [".sock", ".sock"]


@pytest.mark.parametrize("mode", ["shared", "tcp"])
def test_the_probe_prints_rates_of_the_path_that_was_asked_for(
    served: list[str], mode: str
) -> None:
    sizes = ["10", "20000"]

    command = [*PROBE, "read", *served, "--mode", mode, "--turns", "1", "--row-bytes", *sizes]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)

    (line,) = done.stdout.splitlines()
    figures = json.loads(line)
    assert (figures["mode"], figures["data_path"]) == (mode, mode)
    assert [*figures["row_bytes"]] == sizes
    assert all(rate > 0 for row in figures["row_bytes"].values() for rate in row.values())
    assert 0 < figures["claim_microseconds"] < figures["claim_and_read_microseconds"]
