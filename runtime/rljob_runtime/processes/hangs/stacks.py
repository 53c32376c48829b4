"""A process' Python stacks as text: file, line and function of each frame, and nothing of what they hold.

No local variable, no source line (a file system that hangs would hang this, too), no environment.
"""

import os
import sys
import threading
from collections.abc import Iterable
from types import FrameType

MAX_THREADS = 64
INNERMOST, OUTERMOST = 60, 20
"""Frames of a deep stack; those between are counted."""
PACKAGE = f"rljob_runtime{os.sep}"
WAITS_FOR_CALLS = f"processes{os.sep}local_process.py"
"""Where a worker without Ray is between two calls."""


def stacks_text() -> str:
    """All threads of this process, the main one first, innermost frames first."""
    frames = sys._current_frames()
    threads = sorted(threading.enumerate(), key=lambda t: t is not threading.main_thread())
    known = {thread.ident for thread in threads}
    found = [(t.name, t.native_id, frames[t.ident]) for t in threads if t.ident in frames]
    found += [("unnamed", None, frame) for ident, frame in frames.items() if ident not in known]
    texts = [_thread_text(*of_one) for of_one in found[:MAX_THREADS]]
    if len(found) > MAX_THREADS:
        texts.append(f"and {len(found) - MAX_THREADS} more threads\n")
    return "\n".join(texts)


def stands() -> str:
    """Where the main thread is in rljob's code, `run (states/generate.py:71)`; "" where it is idle."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        _, inside, place = frame.f_code.co_filename.rpartition(PACKAGE)
        if inside and place != WAITS_FOR_CALLS:
            return f"{frame.f_code.co_name} ({place}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


def _thread_text(name: str, native_id: int | None, innermost: FrameType) -> str:
    frames = list(_frames(innermost))
    left_out = len(frames) - INNERMOST - OUTERMOST
    if left_out > 0:
        frames[INNERMOST:-OUTERMOST] = [f"  … {left_out} frames"]
    number = f", system's number {native_id}" if native_id is not None else ""
    return "\n".join([f"thread {name}{number}, innermost frame first:", *frames, ""])


def _frames(frame: FrameType | None) -> Iterable[str]:
    while frame is not None:
        code = frame.f_code
        yield f"  {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
