"""Ranks of `torch.distributed` for tests: forks of the test's process, which meet over gloo.

A fork costs 0.1 s where a fresh process imports torch for 2 s, and it runs closures of the test. Several
pytest workers may run ranks at the same time: every call meets in a folder of its own.
"""

import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

Result = TypeVar("Result")
FORK = multiprocessing.get_context("fork")
GRACE_SECONDS = 2.0
"""How long the others may go on once a rank has failed; most fail at once, as its connections close."""


class RanksFailed(Exception):
    """Ranks raised, died or hung. reasons: by rank, a traceback or where the rank stood, the first that
    failed first; the first line of the message has what that one raised."""

    def __init__(self, what: str, reasons: dict[int, str]) -> None:
        self.reasons = reasons
        texts = [f"rank {rank}: {reason.rstrip()}" for rank, reason in reasons.items()]
        super().__init__("\n\n".join([f"{what}: {_raised(texts[0])}", *texts]))


def _raised(text: str) -> str:
    """What a traceback ends with; the first line of what is none."""
    first, *lines = text.splitlines()
    return next((line for line in lines if line and not line.startswith(" ")), first)


def on_ranks(
    size: int,
    function: Callable[[int], Result],
    *,
    seconds: float = 60.0,
    grace_seconds: float = GRACE_SECONDS,
) -> list[Result]:
    """Results of function(rank) by rank; its default group is the `size` ranks, one thread each.

    Results come back by pickle. Raises RanksFailed when a rank raises, or when one has no result
    after `seconds`, or `grace_seconds` after the first that failed; no process is left either way.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        ranks = [_Rank(rank, size, function, Path(name), seconds) for rank in range(size)]
        try:
            failed = _await(ranks, time.monotonic() + seconds, grace_seconds)
            what = f"{len(ranks)} ranks of {function.__qualname__}, deadline {seconds:g} s"
            others = [rank for rank in ranks if not rank.done and rank not in failed]
            reasons = {rank.number: rank.reason() for rank in [*failed, *others]}
            if reasons:
                raise RanksFailed(what, reasons)
            return [rank.result for rank in ranks]
        finally:
            for rank in ranks:
                rank.end()


class _Rank:
    """One process and what it sent: (True, result) or (False, traceback)."""

    def __init__(
        self, number: int, size: int, function: Callable[[int], Any], folder: Path, seconds: float
    ) -> None:
        self.number = number
        self.stack = folder / f"stack-{number}"
        self.answer: tuple[bool, Any] | None = None
        self.pipe, theirs = FORK.Pipe(duplex=False)
        arguments = (function, number, size, folder, seconds, theirs)
        self.process: BaseProcess = FORK.Process(target=_live, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    @property
    def done(self) -> bool:
        return self.answer is not None and self.answer[0]

    @property
    def result(self) -> Any:
        assert self.answer is not None
        return self.answer[1]

    def hear(self) -> None:
        try:
            self.answer = pickle.loads(self.pipe.recv_bytes())
        except EOFError:
            self.process.join()
            code = self.process.exitcode or 0
            where = f" at\n{self.stack.read_text()}" if code < 0 and self.stack.exists() else ""
            self.answer = (False, f"died without a word, exit code {code}{where}")

    def reason(self) -> str:
        """Why there is no result; of a rank that still runs, where it stands."""
        if self.answer is not None:
            return str(self.answer[1])
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGUSR1)
        until = time.monotonic() + 1.0
        while not (self.stack.exists() and self.stack.stat().st_size) and time.monotonic() < until:
            time.sleep(0.01)
        return (
            f"no result yet; it stands at\n{self.stack.read_text() if self.stack.exists() else '?'}"
        )

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()
        self.process.close()


def _await(ranks: list[_Rank], deadline: float, grace_seconds: float) -> list[_Rank]:
    """Hear all ranks, until the deadline, or until shortly after the first that failed; those that failed, in
    that order."""
    failed: list[_Rank] = []
    silent: dict[Any, _Rank] = {rank.pipe: rank for rank in ranks}
    while silent and (left := deadline - time.monotonic()) > 0:
        for pipe in wait(list(silent), timeout=left):
            rank = silent.pop(pipe)
            rank.hear()
            if not rank.done:
                failed.append(rank)
                deadline = min(deadline, time.monotonic() + grace_seconds)
    return failed


def _live(
    function: Callable[[int], Any],
    rank: int,
    size: int,
    folder: Path,
    seconds: float,
    pipe: Connection,
) -> None:
    gc.freeze()  # a collection would write into, and so copy, all of the parent's memory
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # torch asks DNS for the name of each address that it meets at (`c10d::formatSockAddr`), and waits for it.
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
    with open(folder / f"stack-{rank}", "w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack)
        faulthandler.enable(file=stack)
        try:
            dist.init_process_group(
                "gloo",
                store=FileStore(str(folder / "meet"), size),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=seconds),
            )
            pipe.send_bytes(pickle.dumps((True, function(rank))))
            signal.pause()  # its connections stay open for the others until `end`
        except BaseException:
            pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
