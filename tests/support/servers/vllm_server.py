"""vLLM's OpenAI-compatible server of a test, on this machine's CPU, in a fork that has vLLM in memory."""

import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

from free_ports import free_port
from vllm_forks import forked

START_SECONDS = 300.0
END_SECONDS = 30.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other tests run beside it
    "OMP_NUM_THREADS": "1",
}
OPTIONS = {
    "dtype": "float32",
    "max-model-len": "512",
    "max-num-seqs": "4",
    "kv-cache-memory-bytes": str(64 << 20),
    "generation-config": "vllm",
}


@contextlib.contextmanager
def vllm_server(model: Path, *, name: str, log: Path) -> Iterator[str]:
    """Base address of a server that knows the model by that name, until the body's end."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    options = {"model": str(model), "served-model-name": name, "host": "127.0.0.1"} | OPTIONS
    words = [word for option, value in options.items() for word in (f"--{option}", value)]
    words += ["--port", str(port), "--enforce-eager"]
    server = forked(_serve, words, log=log, environment=ENVIRONMENT)
    assert server.pid is not None
    try:
        _wait_until_ready(address, server, log)
        yield f"{address}/v1"
    finally:
        server.terminate()
        server.join(END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # it and its engine, whoever of them is left
        server.join()


def _serve(words: list[str]) -> None:
    """vLLM would spawn its engine and the engine's worker, each to import vLLM anew; where OpenMP has one
    thread, a fork does."""
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork  # type: ignore
    sys.argv = ["vllm", *words]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


def _wait_until_ready(address: str, server: BaseProcess, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.is_alive():
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        time.sleep(0.5)
    raise AssertionError(
        f"vLLM did not become ready within {START_SECONDS:.0f} s: {log.read_text()[-3000:]}"
    )
