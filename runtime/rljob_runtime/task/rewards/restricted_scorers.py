"""Compute scores in a fork without rights, a new one for each batch. Used by `scorer_child`.

Libraries that compare an answer with a response evaluate parts of it, so a response may be a program. In
the fork it has no access to files, network, other processes or the environment, and its changes end with
its batch.
"""

import contextlib
import ctypes
import faulthandler
import json
import math
import os
import resource
import secrets
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.children.restricted import THREADS_OF_LIBRARIES, restrict
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.scorers import Scorer

MEMORY_BYTES = 1 << 30
"""Limit beyond the memory of the process when it is forked."""
ANSWER_BYTES = 64 << 10
ERROR_CHARACTERS = 2000
STACKS_BYTES = 1 << 20
READY = b"ready"
OPENBLAS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads64_",
)


class RestrictedScorers:
    """The parent's side of the fork.

    scorers: by name, created before the fork. stacks: the file that it writes its stacks to at SIGUSR1.
    readable: folders that it may read in addition to Python's own. Raises ConfigError if the kernel
    cannot restrict it.
    """

    def __init__(
        self, scorers: Mapping[str, Scorer], *, stacks: int, readable: Sequence[str]
    ) -> None:
        self._scorers, self._stacks, self._readable = scorers, stacks, readable
        self._fork: _Fork | None = None
        self._next: _Fork | None = None
        self._changed = ""
        _use_one_thread_for_matrices()
        self._begin()

    def score(self, name: str, request: RewardRequest) -> dict[str, Any]:
        """Return `score`, a finite number, or `error`. The error has `changed` if a response has taken
        over the fork."""
        self._check_extra_output()
        if change := self._take_change():
            return change
        if self._fork is None:
            try:
                self._begin()
            except (OSError, ConfigError) as error:
                return {"error": str(error)}
        assert self._fork is not None
        mark = secrets.token_hex(8)  # output of a response itself lacks it
        task = {"name": name, "request": request.fields(), "mark": mark}
        answer = self._fork.answer(json.dumps(task).encode())
        if answer is None:
            return {"error": f"ended its process with exit status {self._end()}"}
        result = _checked(answer, mark)
        if result is None:
            self._mark_changed(f"it answered {answer[:80]!r}")
        elif self._fork.has_extra_output():
            self._mark_changed("it wrote more than an answer")
        return self._take_change() or result or {}

    def renew(self) -> None:
        """Replace the fork by a new one without any earlier state. If the old one wrote without a
        request, the next score reports this."""
        self._check_extra_output()
        self._end()
        with contextlib.suppress(
            OSError, ConfigError
        ):  # the next score tries again, and reports the error
            self._begin()

    def prepare(self) -> None:
        """Create the next fork in advance, so that `renew` does not wait for it."""
        if self._next is None:
            with contextlib.suppress(OSError):  # `renew` tries again
                self._next = _Fork(self._run_fork)

    def dump_stacks(self) -> None:
        """Make the fork write its stacks."""
        if self._fork is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._fork.pid, signal.SIGUSR1)

    def _begin(self) -> None:
        fork, self._next = self._next or _Fork(self._run_fork), None
        if (line := fork.line()) != READY:
            fork.end()
            reason = line.decode(errors="replace") if line else "it ended"
            raise ConfigError(f"cannot be restricted on this machine: {reason}")
        self._fork = fork

    def _end(self) -> int:
        """End the fork and return its exit status."""
        fork, self._fork = self._fork, None
        return fork.end() if fork is not None else 0

    def _take_change(self) -> dict[str, Any] | None:
        """Return the error that a response has taken over the fork, once."""
        changed, self._changed = self._changed, ""
        return {"error": changed, "changed": True} if changed else None

    def _mark_changed(self, reason: str) -> None:
        self._end()
        self._changed = f"a response has changed the process that scores: {reason}"

    def _check_extra_output(self) -> None:
        """Check for output without a request, and reap a fork that has ended."""
        if self._fork is None:
            return
        has_output = self._fork.has_extra_output()
        if has_output:
            self._mark_changed("it wrote before it was asked")
        elif has_output is None:
            self._end()

    def _run_fork(self, requests: int, answers: int) -> NoReturn:
        """Restrict the fork and score requests until its parent ends."""
        try:
            end_with_parent()
            faulthandler.unregister(signal.SIGUSR1)
            faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)
            os.environ.clear()
            os.environ.update(dict.fromkeys(THREADS_OF_LIBRARIES, "1"))
            try:
                _forget_environment()
                if torch := sys.modules.get("torch"):
                    torch.set_num_threads(1)
                _close_except({requests, answers, self._stacks})
                restrict(
                    memory_bytes=_current_bytes() + MEMORY_BYTES,
                    readable=self._readable,
                    file_bytes=STACKS_BYTES,
                )
            except OSError as error:
                os.write(answers, f"{error.strerror or error}\n".encode())
                os._exit(1)
            os.write(answers, READY + b"\n")
            with open(requests, "rb") as lines:
                for line in lines:
                    task = json.loads(line)
                    request = RewardRequest(**task["request"])
                    answer = score_or_error(self._scorers[task["name"]], request) | {
                        "mark": task["mark"]
                    }
                    os.write(answers, json.dumps(answer).encode() + b"\n")
        finally:
            os._exit(1)


class _Fork:
    """A process that answers lines, and the two pipes to it. run: its main function, called with the
    descriptors for requests and answers. Raises OSError."""

    def __init__(self, run: Callable[[int, int], NoReturn]) -> None:
        requests, self._requests_fd = os.pipe()
        self._answers_fd, answers = os.pipe()
        try:
            self.pid = os.fork()
            if not self.pid:
                run(requests, answers)
        except OSError:
            os.close(self._requests_fd)
            os.close(self._answers_fd)
            raise
        finally:
            os.close(requests)
            os.close(answers)

    def answer(self, request: bytes) -> bytes | None:
        """Send a request and return the answer; see `line`."""
        line = request + b"\n"
        with contextlib.suppress(BrokenPipeError):  # `line` notices that it has ended
            while line:
                line = line[os.write(self._requests_fd, line) :]
        return self.line()

    def line(self) -> bytes | None:
        """Return the next line, or None if the process has ended or writes more than an answer may
        have."""
        line = b""
        while not line.endswith(b"\n"):
            data = os.read(self._answers_fd, ANSWER_BYTES)
            line += data
            if not data or len(line) > ANSWER_BYTES:
                return None
        return line[:-1]

    def has_extra_output(self) -> bool | None:
        """Return whether it has written without a request; None if it has ended."""
        if not select.select([self._answers_fd], [], [], 0)[0]:
            return False
        return True if os.read(self._answers_fd, 1) else None

    def end(self) -> int:
        """Kill the process and return its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._requests_fd)
        os.close(self._answers_fd)
        return os.waitstatus_to_exitcode(status)


def score_or_error(scorer: Scorer, request: RewardRequest) -> dict[str, Any]:
    """Return a dict with the `score`, or with the `error` of the scorer."""
    try:
        return {"score": scorer(request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]}


def _checked(answer: bytes, mark: str) -> dict[str, Any] | None:
    """Return the parsed answer, or None if it does not answer the request with this mark."""
    try:
        fields = json.loads(answer)
        if fields["mark"] != mark:
            return None
        if "error" in fields:
            return {"error": str(fields["error"])[:ERROR_CHARACTERS]}
        score = float(fields["score"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
    return {"score": score} if math.isfinite(score) else {"error": f"the score is {score}"}


def _close_except(files: set[int]) -> None:
    """Close all other open files of this process, and connect the standard ones to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in files:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(number)


def _use_one_thread_for_matrices() -> None:
    """Set OpenBLAS to one thread: it would use as many in a fork as before it, and a restricted fork
    cannot start any."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        files = {line.split()[-1] for line in maps if "openblas" in line}
        for file in files:
            library = ctypes.CDLL(file)
            for name in OPENBLAS:
                if hasattr(library, name):
                    getattr(library, name)(1)


def _forget_environment() -> None:
    """Erase the environment that the process started with, which stays in its memory."""
    with open("/proc/self/stat") as facts:
        first, last = map(int, facts.read().rpartition(")")[2].split()[47:49])  # env_start, env_end
    if 0 < first < last:
        ctypes.memset(first, 0, last - first)


def _current_bytes() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[0]) * resource.getpagesize()
