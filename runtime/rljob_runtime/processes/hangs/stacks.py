"""Render a process' Python stacks as text: file, line and function of each frame, without any data.

It contains no local variables and no environment. It contains no source lines either: reading them from a
hanging file system would block.
"""

import os
import sys
import threading
from collections.abc import Iterable
from types import FrameType

MAX_THREADS = 64
INNERMOST, OUTERMOST = 60, 20
"""Number of innermost and outermost frames shown of a deep stack; those between are counted."""
PACKAGE = f"rljob_runtime{os.sep}"
WAITS_FOR_CALLS = f"processes{os.sep}local_process.py"
"""The location of a worker without Ray between two calls."""


def stacks_text() -> str:
    """Return the stacks of all threads, the main thread first, innermost frames first."""
    frames = sys._current_frames()
    threads = sorted(threading.enumerate(), key=lambda t: t is not threading.main_thread())
    known = {thread.ident for thread in threads}
    stacks = [(t.name, t.native_id, frames[t.ident]) for t in threads if t.ident in frames]
    stacks += [("unnamed", None, frame) for ident, frame in frames.items() if ident not in known]
    texts = [_thread_text(*stack) for stack in stacks[:MAX_THREADS]]
    if len(stacks) > MAX_THREADS:
        texts.append(f"and {len(stacks) - MAX_THREADS} more threads\n")
    return "\n".join(texts)


def stands() -> str:
    """Return the main thread's location in rljob's code, like `run (states/generate.py:71)`; "" if it
    is idle."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        _, inside, location = frame.f_code.co_filename.rpartition(PACKAGE)
        if inside and location != WAITS_FOR_CALLS:
            return f"{frame.f_code.co_name} ({location}:{frame.f_lineno})"
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
