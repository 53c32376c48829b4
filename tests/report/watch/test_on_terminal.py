"""`rljob watch DIR`: the screen of `rljob run`, of a run that somebody else drives."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest
from growing_run import GrowingRun
from rich.console import Console
from rich.text import Text
from run_events import make_events
from typer.testing import CliRunner

from rljob_runtime.children.process_start import start_of
from rljob_runtime.cli.main import app
from rljob_runtime.errors import ConfigError
from rljob_runtime.report.display.display import Display, display_after
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.watch.on_terminal import TerminalWatch
from rljob_runtime.report.watch.runs import SILENT_SECONDS, LocalRun


class Terminal:
    """A terminal with somebody who watches a run; between two looks `meanwhile` happens, and time passes."""

    def __init__(
        self, run: GrowingRun, meanwhile: Sequence[Callable[[], object]], now: float
    ) -> None:
        self.console: Any = Console(
            file=io.StringIO(), width=100, height=30, force_terminal=True, _environ={}
        )
        self.told: list[str] = []
        self.now = now
        self._next = iter(meanwhile)
        self._run = LocalRun(run.folder)

    def watch(self) -> int:
        return TerminalWatch(
            self._run,
            self._display,
            patience_seconds=60,
            notify=self.told.append,
            sleep=self._sleep,
            clock=lambda: self.now,
        ).run_until_end()

    @property
    def text(self) -> str:
        return Text.from_ansi(self.console.file.getvalue()).plain

    def _display(self, earlier: RunHistory) -> Display:
        return display_after(earlier, report=self._run.report, console=self.console)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        happens = next(self._next, None)
        if happens is not None:
            happens()


def at_its_end(events: Sequence[dict[str, Any]]) -> float:
    return max(event["time"] for event in events)


def test_a_run_is_followed_from_before_its_folder_is_there_to_its_end(growing) -> None:
    run = growing(steps=12, every=4)
    end = at_its_end(run.events)
    terminal = Terminal(run, [lambda: None, *[lambda: run.write(9)] * 40], now=end)

    code = terminal.watch()

    assert code == 0
    assert terminal.told == [f"waiting for {run.file}"]
    assert "done: 12 of 12 steps" in terminal.text
    assert "held-out accuracy" in terminal.text


def test_a_run_that_has_ended_is_summed_up_at_once(growing) -> None:
    run = growing(steps=3)
    run.write()
    (run.folder / "report.html").write_text("")

    terminal = Terminal(run, [], now=0.0)

    assert terminal.watch() == 0
    assert "done: 3 of 3 steps" in terminal.text
    assert "report.html" in "".join(terminal.text.split())


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"status": "failed", "exit_code": 4}, 4),
        ({"status": "failed"}, 1),
        ({"status": "interrupted"}, 3),
        ({"status": "succeeded"}, 0),
    ],
)
def test_it_ends_as_the_run_did(growing, end: dict[str, object], code: int) -> None:
    run = growing(steps=2, finished=None)
    run.events.append({"time": 1.0, "kind": "run_finished", "message": "", **end})
    run.write()

    assert Terminal(run, [], now=0.0).watch() == code


def test_a_resumed_run_goes_on_on_the_same_screen(growing) -> None:
    run = growing(steps=6, total_steps=9, every=None, finished=None)
    run.write()
    late = at_its_end(make_events(steps=9, every=None)) + 10
    again = [e for e in make_events(steps=9, every=None, seed=8) if e.get("step", 0) > 4]
    run.events = [make_events(steps=9)[0] | {"resumed_from": 4, "time": late}, *again]

    terminal = Terminal(run, [lambda: run.write(30), lambda: run.write()], now=late)

    assert terminal.watch() == 0
    assert "done: 9 of 9 steps" in terminal.text


def test_a_run_that_never_begins_is_given_up_with_what_was_waited_for(growing) -> None:
    run = growing(steps=1)

    with pytest.raises(ConfigError) as given_up:
        Terminal(run, [], now=0.0).watch()

    assert str(given_up.value) == (
        f"{run.folder}: no run began within 60 s (waiting for {run.file}); "
        "--wait SECONDS waits longer"
    )


def test_a_run_whose_driver_was_killed_is_not_waited_for(growing) -> None:
    run = growing(steps=3, finished=None, start=time.time() - 100)
    run.write()
    driver = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    began = start_of(psutil.Process(driver.pid))
    place = {"pid": driver.pid, "started": began, "host": socket.gethostname()}
    (run.folder / "driver.json").write_text(json.dumps(place))

    def kill() -> None:
        driver.kill()
        driver.wait(30)

    terminal = Terminal(run, [lambda: None, kill], now=time.time())

    assert terminal.watch() == 1
    assert terminal.told == [
        f"{run.folder}: process {driver.pid}, the run's driver, is gone and wrote no end; "
        "rljob run FILE --resume goes on"
    ]


def test_a_driver_of_an_earlier_attempt_does_not_count(growing) -> None:
    run = growing(steps=3, start=time.time() + 100)
    run.write(8)
    place = {"pid": 2**22 + 1, "started": 1.0, "host": socket.gethostname()}
    (run.folder / "driver.json").write_text(json.dumps(place))

    assert Terminal(run, [run.write], now=time.time()).watch() == 0


def test_a_run_that_is_silent_for_hours_is_not_waited_for(growing) -> None:
    run = growing(steps=3, finished=None)
    end = at_its_end(run.events)
    run.write()
    terminal = Terminal(run, [], now=end + SILENT_SECONDS + 1)

    assert terminal.watch() == 1
    assert "no event for 2:00:0" in terminal.told[0]
    assert f"rljob stacks {run.folder} asks it" in terminal.told[0]


def test_the_command_tells_the_exit_status_and_exits_with_it(growing) -> None:
    run = growing(steps=2, finished="failed")
    run.write()

    result = CliRunner().invoke(app, ["watch", str(run.folder)])

    assert result.exit_code == 1
    assert "failed: 2 of 2 steps" in result.stdout
    assert result.stdout.endswith(f"{run.folder}: the run ended with exit status 1\n")


def test_the_command_says_how_long_it_waited(tmp_path) -> None:
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "none"), "--wait", "0"])

    assert result.exit_code == 2
    assert "no run began within 0 s" in result.stderr


@pytest.mark.parametrize("option", ["--port=8000", "--host=0.0.0.0"])
def test_options_of_the_page_are_refused_without_it(tmp_path, option: str) -> None:
    result = CliRunner().invoke(app, ["watch", str(tmp_path), option])

    assert (result.exit_code, result.stderr) == (
        2,
        "--port and --host are for the page; add --web or leave them out\n",
    )


def test_ctrl_c_ends_the_watching_alone(growing) -> None:
    run = growing(steps=4, start=time.time() - 60)
    run.write(20)
    # whoever starts the tests behind a shell has this signal ignored, and so have all processes it starts
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heard}; from rljob_runtime.cli.main import main; main()"
    watching = subprocess.Popen(
        [sys.executable, "-c", program, "watch", str(run.folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert watching.stdout is not None
        seen = watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=60)
    finally:
        watching.kill()

    assert seen
    assert watching.returncode == 130
    assert f"{run.folder}: no longer watched; the run goes on" in said
