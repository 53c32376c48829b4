"""Processes of a pytest worker that have vLLM in memory: importing it takes longer than any test of it.

They are forks of the process that `rljob run --local` forks its workers from, which imports vLLM, too. It has
no engine: an engine's threads would not be there in a fork.
"""

import multiprocessing
import multiprocessing.forkserver
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

IMPORTED = (
    "rljob_runtime.processes.preloaded",
    "rljob_runtime.rollout.rollout_vllm",
    "rljob_runtime.rollout.vllm_int8",
    "vllm",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)
FORKSERVER = multiprocessing.get_context("forkserver")


def import_once() -> None:
    """Call it before this worker's first run: what is imported is settled with the first process."""
    FORKSERVER.set_forkserver_preload([*IMPORTED])
    multiprocessing.forkserver.ensure_running()


def forked(
    function: Callable[..., None], *arguments: Any, log: Path, environment: dict[str, str]
) -> BaseProcess:
    """A process that calls the function; what it says goes into `log`."""
    import_once()
    process = FORKSERVER.Process(target=_live, args=(function, arguments, log, environment))
    process.start()
    return process


def _live(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    log: Path,
    environment: dict[str, str],
) -> None:
    os.environ.update(environment)
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    function(*arguments)
