"""Commands ended in a traceback where the file system had no place for them."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rljob_runtime.cli.local_problems import socket_problems
from rljob_runtime.cli.output import REMEDIES, file_system_refusal

JOB = Path(__file__).parents[2] / "examples/quickstart.yaml"
RLJOB = [sys.executable, "-c", "from rljob_runtime.cli.main import main; main()"]
COMMANDS = {
    "a run in a file": (["run", str(JOB), "--local", "--output", "file"], {}),
    "a run below a file": (["run", str(JOB), "--local", "--output", "file/run"], {}),
    "a run where none may write": (["run", str(JOB), "--local", "--output", "/proc/none"], {}),
    "a home that is none": (
        ["run", str(JOB), "--local", "--output", "run"],
        {"HOME": "/proc/none"},
    ),
    "a page of a run below a file": (["watch", "file/run"], {}),
    "a simulation below a file": (["simulate", str(JOB), "--output", "file/run"], {}),
}


def rljob(
    words: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RLJOB, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "RLJOB_CACHE"} | environment,
    )


@pytest.mark.parametrize(("words", "environment"), COMMANDS.values(), ids=COMMANDS)
def test_a_place_that_cannot_be_is_named_in_one_line_with_a_remedy(
    tmp_path: Path, words: list[str], environment: dict[str, str]
) -> None:
    (tmp_path / "file").touch()

    done = rljob(words, tmp_path, environment)

    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert last.endswith(tuple(REMEDIES.values())), last


@pytest.mark.parametrize("options", [["--local"], []], ids=["local", "on Ray"])
def test_a_folder_of_temporary_files_that_leaves_no_room_for_sockets_is_named(
    tmp_path: Path, options: list[str]
) -> None:
    folder = tmp_path / ("a" * 101)
    folder.mkdir()

    done = rljob(["run", str(JOB), *options], tmp_path, {"TMPDIR": str(folder)})

    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"TMPDIR: is {folder}, of {len(str(folder))} bytes; sockets")


def test_rays_own_folder_of_temporary_files_counts_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "a" * 101)

    assert not socket_problems(ray_folder="/tmp", local=False)
    assert socket_problems(ray_folder="/tmp", local=True)
    (problem,) = socket_problems(ray_folder="/" + "b" * 101, local=False)
    assert str(problem).startswith("RAY_TMPDIR: is /bbb")


@pytest.mark.parametrize("number", REMEDIES)
def test_what_the_file_system_refuses_is_named(number: int) -> None:
    refusal = file_system_refusal(OSError(number, os.strerror(number), "/some/file"))

    assert refusal is not None
    assert refusal.startswith(f"/some/file: {os.strerror(number)}; ")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_limit_of_open_files_is_told_with_how_to_raise_it(number: int) -> None:
    refusal = file_system_refusal(OSError(number, os.strerror(number)))

    assert refusal is not None
    assert "raise the limit of open files (ulimit -n)" in refusal


def test_an_error_of_no_file_is_none_of_the_file_systems() -> None:
    assert file_system_refusal(OSError(errno.ENOSPC, "No space left on device")) is None
    assert file_system_refusal(ConnectionResetError(errno.ECONNRESET, "reset")) is None
