"""The processes of a group of sides that share an environment: a host, a producer, three consumers."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from benchmarks import ROOT
from benchmarks.dock.sample_flow.payload import READERS

CLOSE_SECONDS = 20.0


class Process:
    """A process that takes orders. module: `sample_flow.worker`, or another that answers JSON lines.

    prefix: what its command begins with.
    """

    def __init__(
        self,
        python: str,
        log: Path,
        *,
        module: str = "benchmarks.dock.sample_flow.worker",
        prefix: Sequence[str] = (),
    ) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*prefix, python, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
            )

    def tell(self, do: str, **order: Any) -> None:
        """Send an order; its answer is for `answer`."""
        assert self._process.stdin is not None, "a process without its input"
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """The answer to the oldest order. Raises RuntimeError with the log's end when there is none."""
        assert self._process.stdout is not None, "a process without its output"
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended:\n{self._log.read_text()[-3000:]}")
        return json.loads(line)

    def ask(self, do: str, **order: Any) -> Any:
        """Send an order and wait for its answer."""
        self.tell(do, **order)
        return self.answer()

    def close(self) -> None:
        """Let it end what it hosts, then end it."""
        try:
            self.ask("close")
            assert self._process.stdin is not None, "a process without its input"
            self._process.stdin.close()
            self._process.wait(CLOSE_SECONDS)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


class Group:
    """Processes of one environment; a context manager.

    hosts: options of each system's `open_host`; where `ray` says so, they are also given the address
    of a Ray that the host starts, with an object store of so many bytes.
    """

    def __init__(self, python: str, hosts: dict[str, dict[str, Any]], *, ray: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rljob-bench-")
        self._python, self._options, self._ray = python, hosts, ray
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        try:
            host, self.producer, *consumers = [
                self._start(name) for name in ("host", "producer", *READERS)
            ]
            self.consumers = dict(zip(READERS, consumers, strict=True))
            extra = {"address": host.ask("ray", memory=self._ray)} if self._ray else {}
            for side, options in self._options.items():
                address = host.ask("host", side=side, **options, **extra)
                for process in (self.producer, *consumers):
                    process.tell("join", side=side, address=address)
                for process in (self.producer, *consumers):
                    process.answer()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, the host last."""
        host, others = self._processes[:1], self._processes[1:]
        with ThreadPoolExecutor(max(1, len(others))) as pool:
            list(pool.map(Process.close, others))
        for process in host:
            process.close()
        self._processes.clear()
        self._folder.cleanup()

    def _start(self, name: str) -> Process:
        process = Process(self._python, Path(self._folder.name) / f"{name}.log")
        self._processes.append(process)
        return process


def environment() -> dict[str, str]:
    """Ours, so that the processes find these modules, need not compile torch and Ray each time, and
    join one Ray, which listens on this machine alone."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    ours = {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",  # by default 15: actors would yield to those that ask them
    }
    return kept | ours
