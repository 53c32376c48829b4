"""A job's name could move the terminal's cursor, set its title or make a link in what `rljob watch` and
`rljob status` print."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from rljob_api.spec.terminal_text import printable
from rljob_runtime.cli.cluster.job_page import JobSnapshot, page
from rljob_runtime.cli.output import print_stderr, print_text
from rljob_runtime.record.event_types import Event
from rljob_runtime.record.events import events_in
from rljob_runtime.report.display.console import TerminalConsole
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.panels import Palette, screen
from rljob_runtime.report.display.plain import PlainDisplay

CODES = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e[link=http://evil]:bomb:"
RUN = Path(__file__).parents[2] / "fixtures/analyzed_runs/reward/events.jsonl"


def terminal() -> tuple[TerminalConsole, io.StringIO]:
    written = io.StringIO()
    console = TerminalConsole(
        file=written, force_terminal=True, width=120, height=50, _environ={}, legacy_windows=False
    )
    return console, written


def assert_text_alone(written: str) -> None:
    for code in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e"):
        assert code not in written, repr(code)


@pytest.fixture
def events() -> list[Event]:
    """Of a run whose job has such names."""
    lines = RUN.read_bytes().splitlines()[:40]
    first: dict[str, Any] = json.loads(lines[0])
    first |= {name: first[name] + CODES for name in ("name", "model", "algorithm", "dataset")}
    return list(events_in([json.dumps(first).encode(), *lines[1:]]))


def test_a_live_screen_shows_names_as_they_are(events: list[Event]) -> None:
    history = RunHistory()
    for event in events:
        history.add(event)
    console, written = terminal()

    console.print(screen(history, Palette.for_console(console), time_s=0.0, width=120, height=50))

    assert "small·]0;owned·[2J·2J·[link=http://evil]:bomb:" in written.getvalue()
    assert_text_alone(written.getvalue())


def test_plain_lines_show_names_as_they_are(events: list[Event]) -> None:
    written = io.StringIO()
    display = PlainDisplay(written, report=lambda: None)

    for event in events:
        display.on_event(event)

    assert "·]0;owned··[2J" in written.getvalue()
    assert_text_alone(written.getvalue())


def test_the_page_of_a_job_shows_what_its_status_says() -> None:
    when = "2026-01-01T00:00:00Z"
    failure = {"attempt": 0, "reason": "DriverFailed", "message": f"m{CODES}", "time": when}
    status = {
        "phase": "Running",
        "progress": {"step": 1, "totalSteps": 2},
        "lastCheckpoint": {"step": 1, "path": f"/p{CODES}", "time": when},
        "failures": [failure],
    }
    metadata = {"name": "j", "namespace": "n", "creationTimestamp": when, "uid": "u"}
    console, written = terminal()

    console.print(page(JobSnapshot(job={"metadata": metadata, "status": status}), unix_s=0.0))

    assert_text_alone(written.getvalue())


def test_own_colours_stay() -> None:
    console, written = terminal()

    console.print(Text("red\x1b[2J", style="red"))

    assert written.getvalue().startswith("\x1b[31mred·[2J")


def test_what_a_command_says_has_lines_and_tabs_and_no_other_controls(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_stderr(f"one\n\ttwo{CODES}")
    print_text(f"one\n\ttwo{CODES}")

    said = capsys.readouterr()
    assert said.err == said.out == f"one\n\ttwo{printable(CODES)}\n"
    assert_text_alone(said.out)
