"""Scores that are computed in a fork without rights, a new one for each batch. Used by `scorer_child`.

Libraries that compare an answer with a response evaluate parts of it: a response may be a program. There it
reaches no file, no network, no other process and no environment, and what it changes ends with its batch.
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
"""Beyond what the process has when it is forked."""
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
    """The fork, as its parent sees it. scorers: by name, made before. stacks: the file that it writes its
    stacks to at SIGUSR1. readable: folders that it reads beside Python's own. Raises ConfigError where the
    kernel cannot restrict it."""

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
        """`score`, a finite number, or `error`, which is `changed` where a response has taken hold of the
        fork."""
        self._look_for_more()
        if told := self._told():
            return told
        if self._fork is None:
            try:
                self._begin()
            except (OSError, ConfigError) as error:
                return {"error": str(error)}
        assert self._fork is not None
        mark = secrets.token_hex(8)  # what a response writes by itself lacks it
        asked = {"name": name, "request": request.fields(), "mark": mark}
        answer = self._fork.answer(json.dumps(asked).encode())
        if answer is None:
            return {"error": f"ended its process with exit status {self._end()}"}
        found = _checked(answer, mark)
        if found is None:
            self._broken(f"it answered {answer[:80]!r}")
        elif self._fork.says_more():
            self._broken("it wrote more than an answer")
        return self._told() or found or {}

    def renew(self) -> None:
        """What comes is scored by a new fork, which knows nothing of what was scored. One that wrote before
        it was asked is told of with the next score."""
        self._look_for_more()
        self._end()
        with contextlib.suppress(OSError, ConfigError):  # the next score tries again, and tells
            self._begin()

    def prepare(self) -> None:
        """Make the fork that comes after this one, so that `renew` does not wait for it."""
        if self._next is None:
            with contextlib.suppress(OSError):  # `renew` tries again
                self._next = _Fork(self._live)

    def tell_stacks(self) -> None:
        """Have it write its stacks."""
        if self._fork is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._fork.pid, signal.SIGUSR1)

    def _begin(self) -> None:
        fork, self._next = self._next or _Fork(self._live), None
        if (said := fork.line()) != READY:
            fork.end()
            why = said.decode(errors="replace") if said else "it ended"
            raise ConfigError(f"cannot be restricted on this machine: {why}")
        self._fork = fork

    def _end(self) -> int:
        """Returns its exit status."""
        fork, self._fork = self._fork, None
        return fork.end() if fork is not None else 0

    def _told(self) -> dict[str, Any] | None:
        """That a response has taken hold of it, once."""
        changed, self._changed = self._changed, ""
        return {"error": changed, "changed": True} if changed else None

    def _broken(self, why: str) -> None:
        self._end()
        self._changed = f"a response has changed the process that scores: {why}"

    def _look_for_more(self) -> None:
        """One that has ended by itself is put away."""
        if self._fork is None:
            return
        more = self._fork.says_more()
        if more:
            self._broken("it wrote before it was asked")
        elif more is None:
            self._end()

    def _live(self, asked: int, answers: int) -> NoReturn:
        """The fork's life, which ends with its parent's."""
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
                _keep_only({asked, answers, self._stacks})
                restrict(
                    memory_bytes=_own_bytes() + MEMORY_BYTES,
                    readable=self._readable,
                    file_bytes=STACKS_BYTES,
                )
            except OSError as error:
                os.write(answers, f"{error.strerror or error}\n".encode())
                os._exit(1)
            os.write(answers, READY + b"\n")
            with open(asked, "rb") as lines:
                for line in lines:
                    task = json.loads(line)
                    request = RewardRequest(**task["request"])
                    said = answer_of(self._scorers[task["name"]], request) | {"mark": task["mark"]}
                    os.write(answers, json.dumps(said).encode() + b"\n")
        finally:
            os._exit(1)


class _Fork:
    """A process that answers lines, and the two pipes to it. live: what it does with what it is asked
    through, and answers through. Raises OSError."""

    def __init__(self, live: Callable[[int, int], NoReturn]) -> None:
        asked, self._asks = os.pipe()
        self._answers, answers = os.pipe()
        try:
            self.pid = os.fork()
            if not self.pid:
                live(asked, answers)
        except OSError:
            os.close(self._asks)
            os.close(self._answers)
            raise
        finally:
            os.close(asked)
            os.close(answers)

    def answer(self, asked: bytes) -> bytes | None:
        """As `line`."""
        line = asked + b"\n"
        with contextlib.suppress(BrokenPipeError):  # the answer tells what became of it
            while line:
                line = line[os.write(self._asks, line) :]
        return self.line()

    def line(self) -> bytes | None:
        """None where it has ended, or says more than an answer has."""
        line = b""
        while not line.endswith(b"\n"):
            data = os.read(self._answers, ANSWER_BYTES)
            line += data
            if not data or len(line) > ANSWER_BYTES:
                return None
        return line[:-1]

    def says_more(self) -> bool | None:
        """Whether it has written what nobody asked for; None where it has ended."""
        if not select.select([self._answers], [], [], 0)[0]:
            return False
        return True if os.read(self._answers, 1) else None

    def end(self) -> int:
        """Kill it; returns its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._asks)
        os.close(self._answers)
        return os.waitstatus_to_exitcode(status)


def answer_of(scorer: Scorer, request: RewardRequest) -> dict[str, Any]:
    """`score` or `error`."""
    try:
        return {"score": scorer(request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]}


def _checked(answer: bytes, mark: str) -> dict[str, Any] | None:
    """None for what is no answer to what was asked with this mark."""
    try:
        said = json.loads(answer)
        if said["mark"] != mark:
            return None
        if "error" in said:
            return {"error": str(said["error"])[:ERROR_CHARACTERS]}
        score = float(said["score"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
    return {"score": score} if math.isfinite(score) else {"error": f"the score is {score}"}


def _keep_only(files: set[int]) -> None:
    """Of this process' open files; standard ones are nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in files:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(number)


def _use_one_thread_for_matrices() -> None:
    """OpenBLAS has as many threads in a fork as before it, and a restricted one may start none."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        files = {line.split()[-1] for line in maps if "openblas" in line}
        for file in files:
            library = ctypes.CDLL(file)
            for name in OPENBLAS:
                if hasattr(library, name):
                    getattr(library, name)(1)


def _forget_environment() -> None:
    """What the process began with stays in its memory."""
    with open("/proc/self/stat") as facts:
        first, last = map(int, facts.read().rpartition(")")[2].split()[47:49])  # env_start, env_end
    if 0 < first < last:
        ctypes.memset(first, 0, last - first)


def _own_bytes() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[0]) * resource.getpagesize()
