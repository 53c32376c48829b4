"""A dock for tests whose servers are forks of the test's process.

A fork costs 0.05 s where a fresh process imports its modules for 0.7 s, and a dock has three servers or more.
How servers start and what they do at a crash is for tests of `LocalDock` itself.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import subprocess
from typing import Any, TextIO, cast

from rljob_runtime.dock.local_servers import LocalDock
from rljob_runtime.dock.serve import make_server, serve

FORK = multiprocessing.get_context("fork")


class ForkedDock(LocalDock):
    """A `LocalDock`, as tests of those that read and write in it need one."""

    def _launch(self, role: str) -> None:
        forked = _Forked(role.partition("/")[0], self._configs[role])
        self._processes[role] = cast("subprocess.Popen[str]", forked)


class _Forked:
    """A server's process, with what a dock asks of a `Popen`."""

    def __init__(self, kind: str, config: dict[str, Any]) -> None:
        reading, writing = os.pipe()
        self.stdout: TextIO = os.fdopen(reading)
        self._process = FORK.Process(target=_live, args=(kind, config, writing), daemon=True)
        self._process.start()
        os.close(writing)
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code


def _live(kind: str, config: dict[str, Any], told: int) -> None:
    gc.freeze()  # a collection would write into, and so copy, all of the parent's memory

    async def run() -> None:
        await serve(make_server(kind, config), with_parent=True)

    with os.fdopen(told, "w") as place, contextlib.redirect_stdout(place):
        asyncio.run(run())
