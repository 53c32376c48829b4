"""A child process with one tracker: it reads a line per step's metrics and writes a line once they are
recorded.

Started by `trackers`, and ends with its parent. Output of libraries is discarded, and the values of secrets
are removed from their errors.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.spec.tracking import Tracking
from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.report.tracking.tracker import TrackedRun, Tracker
from rljob_runtime.report.tracking.tracker_table import open_tracker

SECRET_WORDS = ("KEY", "TOKEN", "PASSWORD", "SECRET")
MAX_ERROR = 400


def main() -> None:
    """Read the configuration, then metrics until the end of the run or of the pipe."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles the terminal's Ctrl-C
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    tracker: Tracker | None = None
    for line in sys.stdin:
        try:
            tracker = _take(tracker, json.loads(line))
            answer: dict[str, Any] = {"ready": True}
        except Exception as error:
            why = without_secrets(f"{type(error).__name__}: {error}", os.environ)
            answer = {"refused" if tracker is None else "error": why}
        answers.write(json.dumps(answer) + "\n")


def _take(tracker: Tracker | None, message: dict[str, Any]) -> Tracker:
    if tracker is None:
        run = message["run"]
        run["folder"] = Path(run["folder"])
        spec = Tracking.model_validate_json(message["tracking"])
        return open_tracker(message["tracker"], spec, TrackedRun(**run))
    if "status" in message:
        tracker.close(message["status"])
    else:
        tracker.log(message["step"], message["metrics"], message["time"])
    return tracker


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """Return the beginning of the text without values of variables that are named like secrets."""
    for name, value in environment.items():
        if value and any(word in name.upper() for word in SECRET_WORDS):
            text = text.replace(value, f"<{name}>")
    return text[:MAX_ERROR]


if __name__ == "__main__":
    main()
