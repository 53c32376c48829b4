"""A slow device stands in the notices, and on the screen for as long as it is slow in this process."""

from typing import Any

import pytest
from rich.console import Console
from run_events import event_of, history_of, make_events

from rljob_runtime.report.display.document import notices
from rljob_runtime.report.display.panels import warnings
from rljob_runtime.report.display.wording import recovery_text, straggler_text

SLOW: dict[str, Any] = {
    "kind": "straggler",
    "time": 1_760_009_000.0,
    "step": 9,
    "state": "generate",
    "devices": [3],
    "hosts": ["node-b"],
    "status": "slow",
    "factor": 2.6,
    "steps": 5,
}
TEXT = (
    "device 3 (node-b) is slow: generate takes 2.60 times its peers' time, in 5 steps up to step 9"
)


def on_screen(*more: dict[str, Any]) -> str:
    console = Console(width=120)
    with console.capture() as said:
        console.print(*warnings(history_of([*make_events(steps=10), *more]), 120))
    return said.get()


@pytest.mark.parametrize("status", ["over", "replaced"])
def test_it_is_on_the_screen_until_it_is_over_or_replaced(status: str) -> None:
    assert TEXT in on_screen(SLOW)
    assert TEXT not in on_screen(SLOW, SLOW | {"status": status, "step": 10})


def test_another_process_of_the_run_begins_without() -> None:
    started = {**make_events(steps=1)[0], "time": SLOW["time"] + 1, "resumed_from": 9}

    assert TEXT not in on_screen(SLOW, started)


def test_the_report_keeps_both_ends() -> None:
    over = SLOW | {"status": "over", "step": 14, "factor": 1.1}
    history = history_of([*make_events(steps=20), SLOW, over])

    texts = [each["text"] for each in notices(history) if each["kind"] == "straggler"]
    assert texts == [TEXT, straggler_text(event_of(over))]  # type: ignore[arg-type]
    assert "is slow no more: generate takes 1.10 times" in texts[1]


def test_who_was_left_is_not_said_to_have_died() -> None:
    left = {"kind": "recovery", "devices": [3], "hosts": ["node-b"], "step": 9, "source": "peers"}
    event: Any = event_of(left | {"seconds": 6.2, "message": "", "slow": True})

    assert recovery_text(event).startswith("device 3 (node-b) was slow and was replaced in 6.2 s")
