"""Exit codes of `rljob`, for shells and for the operator."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of a command; `MEANING` describes each."""

    DONE = 0
    FAILED = 1
    INVALID = 2
    INTERRUPTED = 3
    STOPPED = 4
    HUNG = 5
    DIFFERS = 6
    KILLED = 130


MEANING = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "the run failed",
    ExitCode.INVALID: "the job or the command line is invalid, or asks for what cannot be done; nothing was "
    "started",
    ExitCode.INTERRUPTED: "interrupted, with a checkpoint; --resume goes on",
    ExitCode.STOPPED: "stopped by a guard (spec.guards)",
    ExitCode.HUNG: "a deadline of the run passed; every process's stacks are in hangs/ of its folder",
    ExitCode.DIFFERS: "a step came out otherwise than the run told (rljob replay)",
    ExitCode.KILLED: "ended at once by a second Ctrl-C",
}
"""Descriptions for the help of the command line."""
