"""A run that had finished exited 1, or a plan ended in a traceback, since its output could not be encoded or
written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples/quickstart.yaml"
RLJOB = [sys.executable, "-c", "from rljob_runtime.cli.main import main; main()"]


def command(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*RLJOB, *arguments], check=False, timeout=300, stderr=subprocess.PIPE, **options
    )  # type: ignore[call-overload]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_plan_is_printed_in_any_encoding(encoding: str) -> None:
    done = command(
        "plan", str(JOB), stdout=subprocess.PIPE, env=os.environ | {"PYTHONIOENCODING": encoding}
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"devices" in done.stdout


def test_a_reader_who_has_enough_is_no_error() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as closed:
        done = command("plan", str(JOB), stdout=closed)

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_plan_that_cannot_be_written_is_one() -> None:
    with open("/dev/full", "wb") as full:
        done = command("plan", str(JOB), stdout=full)

    assert done.returncode == 1
    assert done.stderr == b"standard output cannot be written: No space left on device\n"
