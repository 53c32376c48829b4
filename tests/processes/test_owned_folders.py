"""Folders of killed processes go; those of living ones stay."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_runtime.children import owned_folders
from rljob_runtime.children.owned_folders import MemoryFolder, OwnedFolder, remove_abandoned
from rljob_runtime.cli.main import app

OWNER = """
import sys
from rljob_runtime.children.owned_folders import OwnedFolder
folder = OwnedFolder("test")
(folder.path / "file").write_text("left")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(owned_folders, "MEMORY", tmp_path_factory.mktemp("memory"))


@contextmanager
def owner() -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield Path(process.stdout.readline().strip()), process
        process.kill()


def test_a_killed_process_folder_goes_and_a_living_ones_stays() -> None:
    with owner() as (killed, process), owner() as (living, _), OwnedFolder("own") as own:
        process.kill()
        process.wait(10)

        removed = remove_abandoned()

        assert removed == [killed]
        assert [folder.exists() for folder in (killed, living, own.path)] == [False, True, True]
        assert (living / "file").read_text() == "left"
    assert not own.path.exists()


def test_a_runs_folder_in_memory_stays_while_one_of_its_processes_has_it() -> None:
    first, second = MemoryFolder("run"), MemoryFolder("run")
    (first.path / "file").write_text("left")

    os.close(first._lock)  # as the kernel does when the process ends
    kept = remove_abandoned()
    os.close(second._lock)
    removed = remove_abandoned()

    assert (kept, removed) == ([], [first.path])
    assert not second.path.exists()


def test_clean_says_what_it_removed(tmp_path: Path) -> None:
    (tmp_path / "not-ours").mkdir()
    with owner() as (killed, process):
        process.kill()
        process.wait(10)

        said = CliRunner().invoke(app, ["clean"])

        assert said.output.split() == [str(killed), "1", "folder", "removed"]
        assert [file.name for file in tmp_path.iterdir()] == ["not-ours"]
        assert CliRunner().invoke(app, ["clean"]).output == "0 folders removed\n"
