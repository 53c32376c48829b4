"""A test that fails says the command that repeats it alone."""

import shlex
import subprocess
import sys
from pathlib import Path

from repeat import command_of

ROOT = Path(__file__).parents[2]


def test_a_failed_test_is_told_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "test_words.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.parametrize('words', ['two words', 'one'])\n"
        "def test_one_word(words):\n    assert ' ' not in words\n"
    )
    support = f"pythonpath={ROOT / 'tests/support/suite'}"
    options = ["-p", "repeat", "-p", "no:cacheprovider", "-o", support]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", "/dev/null", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT / "tests/support/suite",
    )  # fmt: skip

    (told,) = [line for line in done.stdout.splitlines() if line.startswith(".venv/bin/pytest")]
    assert shlex.split(told)[-1].endswith("test_words.py::test_one_word[two words]")


def test_an_end_to_end_test_is_repeated_by_make() -> None:
    told = command_of("e2e/test_02_failures.py::test_a_node[worker 1]")

    (made,) = shlex.split(told.removeprefix("make e2e E2E="))
    assert shlex.split(made) == ["e2e/test_02_failures.py::test_a_node[worker 1]"]
