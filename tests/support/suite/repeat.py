"""Says of each test that failed the command that repeats it alone. A plugin of pytest (pyproject.toml)."""

import shlex

import pytest


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Before pytest's own summary."""
    failed = [
        report.nodeid
        for outcome in ("failed", "error")
        for report in terminalreporter.getreports(outcome)
    ]
    if failed:
        terminalreporter.section("to repeat one alone")
    for test in dict.fromkeys(failed):
        terminalreporter.write_line(command_of(test))


def command_of(test: str) -> str:
    """test: its id, as pytest names it from the repository's root."""
    if test.startswith("e2e/"):
        return f"make e2e E2E={shlex.quote(shlex.quote(test))}"
    return f".venv/bin/pytest -n 0 {shlex.quote(test)}"
