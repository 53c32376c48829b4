"""A test that fails prints the command that repeats it alone; continuous integration repeats it itself."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from repeat import command_of

SUPPORT = Path(__file__).parents[1] / "support/suite"
ALWAYS_FAILS = "def test_wrong():\n    assert 1 == 2, 'one is not two'\n"
PASSES = "def test_right():\n    pass\n"
# The first run leaves a file; the second one finds it.
FLAKY = (
    "import pathlib\n"
    "def test_flaky():\n"
    "    seen = pathlib.Path(__file__).with_suffix('.seen')\n"
    "    if not seen.exists():\n"
    "        seen.touch()\n"
    "        raise RuntimeError('a port was taken\\nby a neighbour')\n"
)
FLAKY_SETUP = (
    "import pytest\n"
    + FLAKY.replace("def test_flaky():", "@pytest.fixture\ndef port():")
    + "def test_with_a_port(port):\n    pass\n"
)


def run_suite(folder: Path, *options: str, **modules: str) -> tuple[int, list[str]]:
    """Return pytest's exit code on these modules, and the lines that it printed."""
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {SUPPORT}\naddopts = -p repeat -p no:cacheprovider\n"
    )
    for name, text in modules.items():
        (folder / f"test_{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def test_a_failed_test_is_printed_with_its_command(tmp_path: Path) -> None:
    words = (
        "import pytest\n\n"
        "@pytest.mark.parametrize('words', ['two words', 'one'])\n"
        "def test_one_word(words):\n    assert ' ' not in words\n"
    )

    code, lines = run_suite(tmp_path, words=words)

    assert code == pytest.ExitCode.TESTS_FAILED
    (command,) = [line for line in lines if line.startswith(".venv/bin/pytest")]
    assert shlex.split(command)[-1].endswith("test_words.py::test_one_word[two words]")


def test_an_end_to_end_test_is_repeated_by_make() -> None:
    command = command_of("e2e/test_02_failures.py::test_a_node[worker 1]")

    (argument,) = shlex.split(command.removeprefix("make e2e E2E="))
    assert shlex.split(argument) == ["e2e/test_02_failures.py::test_a_node[worker 1]"]


@pytest.mark.parametrize(
    ("workers", "module"), [("2", FLAKY), ("0", FLAKY_SETUP)], ids=["in the test", "in its fixture"]
)
def test_a_test_that_passes_alone_is_flaky_and_fails_no_suite(
    tmp_path: Path, module: str, workers: str
) -> None:
    code, lines = run_suite(
        tmp_path, "-n", workers, "--dist", "loadgroup", "--repeat-failed", "5",
        flaky=module.replace("def test_", "import pytest\n@pytest.mark.xdist_group('ports')\ndef test_"),
        right=PASSES,
    )  # fmt: skip

    assert code == pytest.ExitCode.OK
    (flaky,) = [line for line in lines if line.startswith("flaky: ")]
    assert flaky.endswith(": RuntimeError: a port was taken")
    assert "1 passed, 1 flaky in" in lines[-1]


def test_a_test_that_fails_again_fails_the_suite(tmp_path: Path) -> None:
    code, lines = run_suite(
        tmp_path, "--repeat-failed", "5", wrong=ALWAYS_FAILS, flaky=FLAKY, right=PASSES
    )

    assert code == pytest.ExitCode.TESTS_FAILED
    (failed,) = {line for line in lines if line.startswith("failed: ")}
    assert failed.endswith("test_wrong.py::test_wrong: AssertionError: one is not two")
    assert len([line for line in lines if line.startswith("flaky: ")]) == 1
    assert "1 failed, 1 passed, 1 flaky in" in lines[-1]


def test_more_failures_than_the_limit_are_not_repeated(tmp_path: Path) -> None:
    code, lines = run_suite(
        tmp_path, "--repeat-failed", "1", flaky=FLAKY, another=FLAKY, right=PASSES
    )

    assert code == pytest.ExitCode.TESTS_FAILED
    assert not [line for line in lines if line.startswith(("flaky: ", "repeating alone: "))]


def test_a_module_that_cannot_be_imported_is_not_repeated(tmp_path: Path) -> None:
    code, lines = run_suite(
        tmp_path, "--repeat-failed", "5", broken="import nothing_of_this_name\n"
    )

    assert code == pytest.ExitCode.INTERRUPTED
    assert not [line for line in lines if line.startswith("repeating alone: ")]
