"""Commands ended in tracebacks where the working folder was gone, a standard file closed, a kubeconfig
noise."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from every_command import SURROUNDINGS, commands

from rljob_runtime.cli.main import COMMANDS

TESTS = Path(__file__).parents[1]
JOB = TESTS.parent / "examples" / "quickstart.yaml"
RUN = TESTS / "fixtures" / "last_release" / "run"
DRIVER = TESTS / "support" / "driver" / "every_command.py"
QUICK = (
    "a working folder that was removed",
    "standard output is closed",
    "a kubeconfig that is noise",
)
REST = tuple(name for name in SURROUNDINGS if name not in QUICK)
SILENT = ("standard error is closed",)


def test_every_command_is_driven() -> None:
    assert list(commands("", "", Path())) == [command.__name__ for command in COMMANDS]


@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(REST, marks=pytest.mark.nightly)], ids=["some", "the others"]
)
def test_each_ends_with_an_exit_code_and_a_line_in_place_of_a_traceback(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}

    done = subprocess.run(
        [sys.executable, DRIVER, JOB, RUN, tmp_path, *names],
        capture_output=True, text=True, check=False, timeout=900, env=environment, cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    bad = [
        (surrounding, command, code, said[-2000:])
        for surrounding, found in json.loads(done.stdout).items()
        for command, (code, said) in found.items()
        if code not in (0, 1, 2)
        or "Traceback" in said
        or (code and not said.strip() and surrounding not in SILENT)
    ]
    assert bad == []
