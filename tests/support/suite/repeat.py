"""Repeats failed tests alone, and prints the command that does so. A plugin of pytest (pyproject.toml).

With `--repeat-failed N`, tests that failed run once more after the suite, if they are at most N: each in a
process of its own, with nothing beside it. One that passes then is counted as `flaky` and does not fail the
suite; its line `flaky: TEST: ERROR` is a fault to be mended (CONTRIBUTING.md)."""

import os
import shlex
import subprocess
import sys

import pytest

FLAKY = "flaky"
SHOWN_LINES = 40
"""Of each part of what a flaky test printed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--repeat-failed", type=int, default=0, metavar="N",
        help="repeat failed tests alone, if there are at most N; those that pass then are flaky",
    )  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Repeat what failed, once the workers of the suite have ended."""
    limit = session.config.getoption("repeat_failed")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not limit or reporter is None or session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    failures = _failures(reporter)
    if not 0 < len(failures) <= limit:
        return
    for test in failures:
        reporter.write_line(f"\nrepeating alone: {test}")
        reporter.flush()
        if _passes_alone(session.config, test):
            _count_as_flaky(reporter, test)
    if not _failures(reporter):
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print flaky and failed tests before pytest's own summary line."""
    for report in terminalreporter.getreports(FLAKY):
        terminalreporter.section(f"failed, passed alone: {_test_of(report)}", "_")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:  # a process that died has said why there, if anywhere
            terminalreporter.write_line(f"{title}:")
            terminalreporter.write_line("\n".join(text.splitlines()[-SHOWN_LINES:]))
    for report in terminalreporter.getreports(FLAKY):
        terminalreporter.write_line(f"flaky: {_test_of(report)}: {_first_line(report)}")
    failures = _failures(terminalreporter)
    if failures:
        terminalreporter.section("to repeat one alone")
    for test, error in failures.items():
        terminalreporter.write_line(f"failed: {test}: {error}")
        terminalreporter.write_line(command_of(test))


def command_of(test: str) -> str:
    """Return the command that repeats a test. test: its id, as pytest names it from the repository's root."""
    if test.startswith("e2e/"):
        return f"make e2e E2E={shlex.quote(shlex.quote(test))}"
    return f".venv/bin/pytest -n 0 {shlex.quote(test)}"


def _failures(reporter: pytest.TerminalReporter) -> dict[str, str]:
    """Return the first line of the error of each test that failed, by the test's id."""
    failures: dict[str, str] = {}
    for outcome in ("failed", "error"):
        for report in reporter.getreports(outcome):
            failures.setdefault(_test_of(report), _first_line(report))
    return failures


def _test_of(report: pytest.TestReport) -> str:
    test, _, group = report.nodeid.rpartition("@")
    return test if test and "]" not in group else report.nodeid


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return (text.strip().splitlines() or ["no message"])[0][:200]


def _passes_alone(config: pytest.Config, test: str) -> bool:
    options = ["-n", "0"] if config.pluginmanager.hasplugin("xdist") else []
    if config.pluginmanager.hasplugin("timeout"):
        options += ["-o", f"timeout={config.getini('timeout')}"]
    # The images that end-to-end tests need are on the nodes already.
    environment = os.environ | {"RLJOB_E2E_SKIP_IMAGES": "1"}
    command = [sys.executable, "-m", "pytest", *options, test]
    done = subprocess.run(command, check=False, env=environment, cwd=config.rootpath)
    return done.returncode == 0


def _count_as_flaky(reporter: pytest.TerminalReporter, test: str) -> None:
    """Move a test's reports from the failures to one among the flaky."""
    moved = []
    for outcome in ("failed", "error"):
        reports = reporter.stats.pop(outcome, [])
        moved += [report for report in reports if _test_of(report) == test]
        if others := [report for report in reports if _test_of(report) != test]:
            reporter.stats[outcome] = others
    reporter.stats.setdefault(FLAKY, []).append(moved[0])
