"""The live terminal, replayed from events onto a console of a known size."""

import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from run_events import event_of, history_of

from rljob_runtime.record.event_types import StepEvent
from rljob_runtime.report.display.display import make_display
from rljob_runtime.report.display.history import FIRST_STEPS, MOST_STEPS, RunHistory
from rljob_runtime.report.display.panels import Palette, screen
from rljob_runtime.report.display.plain import PlainDisplay, step_line
from rljob_runtime.report.display.terminal import LiveDisplay


def drawn(history: RunHistory, *, width: int = 100, height: int = 30) -> list[str]:
    """Lines of the screen on a terminal of this size."""
    written = io.StringIO()
    console = Console(width=width, height=height, file=written, color_system=None)
    console.print(
        screen(
            history,
            Palette(ascii_only=False),
            time_s=history.last_time,
            width=width,
            height=height,
        )
    )
    return written.getvalue().splitlines()


def terminal(width: int = 100, height: int = 30) -> Any:
    """A console that takes itself for a terminal."""
    return Console(width=width, height=height, file=io.StringIO(), force_terminal=True, _environ={})


def test_the_screen_shows_what_matters_in_100_by_30(events_of) -> None:
    lines = drawn(history_of(events_of(steps=28, total_steps=140, finished=None)))

    text = "\n".join(lines)
    assert len(lines) < 30
    assert max(len(line) for line in lines) <= 100
    assert "spell-backward-grpo" in lines[0] and "tiny · grpo" in lines[0]
    assert "step 28/140" in text and "left" in text
    for label in ("reward", "pass rate", "entropy", "mismatch KL", "tokens/s", "held-out accuracy"):
        assert label in text
    for phase in ("generate", "reference", "reward", "update", "sync"):
        assert f"■ {phase}" in text
    assert "sample prompt" in text


def test_a_run_with_pictures_says_how_many_of_them_a_second(events_of) -> None:
    events = events_of(steps=2, finished=None)
    without = history_of(events)
    for event in events:
        if event["kind"] == "step":
            event["metrics"] |= {"pictures_per_second": 12.5, "picture_tokens_per_second": 3200.0}

    shown = history_of(events)

    screen, line = "\n".join(drawn(shown)), step_line(shown)
    assert re.search(r"pictures/s +12\.5 .* picture tokens/s +3 200 ", screen)
    assert "pictures/s 12.5  picture tok/s 3200  " in line
    assert "picture" not in "\n".join(drawn(without)) + step_line(without)


def test_a_run_that_reshards_says_so_beside_the_last_step(events_of) -> None:
    events = events_of(steps=3, finished=None)
    told = {"seconds": 0.02, "peak_bytes": 11 * 2**20, "bound_bytes": 12 * 2**20}
    events.append({"time": events[-1]["time"], "kind": "reshard", "step": 3, **told})

    [line] = [line for line in drawn(history_of(events)) if line.startswith("reshard")]

    assert line.startswith("reshard             0.02 s · ")
    assert line.endswith("% of the step · peak 11 MiB of 12 MiB")


@pytest.mark.parametrize(
    ("width", "height"), [(20, 6), (30, 40), (40, 10), (60, 12), (80, 24), (200, 60)]
)
def test_the_screen_fits_any_terminal(events_of, width: int, height: int) -> None:
    events = events_of(steps=25, finished=None)
    events.append({"time": 1.0, "kind": "warning", "message": "x" * 300})

    for upto in (1, 3, len(events)):
        lines = drawn(history_of(events[:upto]), width=width, height=height)

        assert len(lines) < height
        assert max(len(line) for line in lines) <= width


def test_alarms_that_last_and_the_last_rollback_are_on_the_screen(events_of) -> None:
    alarm = {"time": 1.0, "kind": "alarm", "state": "raised", "policy": "warn"}
    over = {**alarm, "step": 5, "alarm": "truncation", "message": "cut", "since": 4}
    events = [
        {**over, "step": 6, "policy": "rollback", "alarm": "nonFinite", "rolled_back_to": 6},
        over,
        {**over, "state": "cleared", "step": 6},
        {**over, "step": 6, "alarm": "entropyCollapse", "message": "entropy 0\nnats"},
    ]
    history = history_of([*events_of(steps=6, finished=None), *events])

    told = [line.rstrip() for line in drawn(history) if line.startswith("!!")]

    assert told == [
        "!! alarm nonFinite at step 6: cut; rolled back to step 6",
        "!! alarm entropyCollapse at step 6: entropy 0⏎nats",
    ]


def test_set_up_messages_stand_until_the_first_step(events_of) -> None:
    history = history_of(events_of(steps=1)[:3])

    assert any("warming up the tiny model: step 40" in line for line in drawn(history))


def test_a_metric_that_is_no_number_is_named(events_of) -> None:
    events = events_of(steps=5, finished=None)
    for event in events:
        if event["kind"] == "step":
            event["metrics"] |= {"entropy": math.nan, "kl": None}

    [line] = [line for line in drawn(history_of(events)) if "entropy" in line]
    assert "nan" in line


def test_the_summary_stays_after_the_run(events_of) -> None:
    console = terminal()
    display = LiveDisplay(console, report=lambda: "runs/x/report.html")

    for event in events_of(steps=20):
        display.on_event(event_of(event))
    display.close()

    summary = console.file.getvalue().split("\x1b[?25h")[-1]  # after the cursor came back
    assert "done: 20 of 20 steps" in summary
    assert "held-out accuracy" in summary and "50.4 % → " in summary
    assert "runs/x/report.html" in summary
    assert "rljob run examples/chain-sum.yaml" in summary


def test_a_failure_says_why(events_of) -> None:
    console = terminal()
    display = LiveDisplay(console, report=lambda: None)

    for event in events_of(steps=3, total_steps=20, finished="failed"):
        display.on_event(event_of(event))
    display.close()

    assert "failed: 3 of 20 steps" in console.file.getvalue()
    assert "worker 1 vanished during update" in console.file.getvalue()


def test_closing_before_the_end_gives_the_cursor_back(events_of) -> None:
    console = terminal()
    display = LiveDisplay(console, report=lambda: None)
    display.on_event(event_of(events_of(steps=1)[0]))

    display.close()

    assert console.file.getvalue().count("\x1b[?25l") == console.file.getvalue().count("\x1b[?25h")


def test_an_event_that_cannot_be_drawn_is_said_on_the_screen(events_of) -> None:
    console = terminal()
    display = LiveDisplay(console, report=lambda: None)

    for event in events_of(steps=2, finished=None):
        display.on_event(event_of(event))
    display.on_event(StepEvent(time=2e9, step=3, seconds=1.0, metrics={}, samples=[None]))

    assert "cannot be shown" in str(display._draw())
    display.close()


def test_a_resumed_run_shows_its_earlier_steps(events_of) -> None:
    events = events_of(steps=10, total_steps=20, finished="interrupted")
    display = LiveDisplay(terminal(), report=lambda: None, earlier=history_of(events))
    start = events[0] | {"resumed_from": 8, "time": events[-1]["time"]}

    display.on_event(event_of(start))

    assert display._history.step == 8
    assert len(display._history.series("reward/mean")) == 8
    display.close()


def test_plain_lines_have_one_short_line_a_step_and_no_control_characters(events_of) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, report=lambda: "runs/x/report.html")

    for event in events_of(steps=3, every=2):
        display.on_event(event_of(event))
    display.close()

    lines = stream.getvalue().splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 3
    assert steps[0].startswith("step 1/3  reward ")
    assert max(len(line) for line in steps) <= 160
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()
    assert lines[0] == "spell-backward-grpo: 3 steps, model tiny, grpo, 2 devices"
    assert any(line.startswith("evaluation after step 0: accuracy 50.4 %") for line in lines)
    assert any(line.startswith("checkpoint of step 3: ") for line in lines)
    assert any(line.startswith("done: 3 of 3 steps") for line in lines)
    assert "  report: runs/x/report.html" in lines


def test_plain_progress_is_limited_to_a_line_in_two_seconds() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, report=lambda: None)

    for i in range(100):
        display.on_event(event_of({"time": i / 10, "kind": "progress", "message": f"step {i}"}))

    assert len(stream.getvalue().splitlines()) == 5


def test_the_display_fits_where_it_writes(tmp_path: Path) -> None:
    pipe = Console(file=io.StringIO(), _environ={})
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})

    assert isinstance(make_display(tmp_path, console=pipe), PlainDisplay)
    assert isinstance(make_display(tmp_path, console=dumb), PlainDisplay)
    assert isinstance(make_display(tmp_path, console=terminal()), LiveDisplay)


def test_no_color_is_honoured(events_of) -> None:
    console: Any = Console(
        file=io.StringIO(),
        force_terminal=True,
        width=100,
        height=30,
        _environ={"NO_COLOR": "1", "TERM": "xterm-256color"},
    )
    history = history_of(events_of(steps=5, finished=None))

    console.print(screen(history, Palette.for_console(console), time_s=0.0, width=100, height=30))

    output = console.file.getvalue()
    assert not any(f"\x1b[{colour}m" in output for colour in range(30, 48))


def test_a_display_of_a_long_run_keeps_its_first_and_its_last_steps_and_even_ones_between(
    events_of,
) -> None:
    history = history_of(events_of(steps=MOST_STEPS + 1, finished=None))

    history.thin()

    kept, last = sorted(history.steps), MOST_STEPS + 1
    assert kept[:FIRST_STEPS] == list(range(1, FIRST_STEPS + 1))
    assert kept[-MOST_STEPS // 2 :] == list(range(last - MOST_STEPS // 2 + 1, last + 1))
    assert len(kept) < MOST_STEPS
    assert history.phases.keys() <= set(kept)
