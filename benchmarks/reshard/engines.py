"""What a reshard does for engines: a larger KV cache, and weights without a disk. Called by `__main__`."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines import rollout as generation
from benchmarks.support.figures import Figures
from benchmarks.support.models import SIZES, make_model
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.models.families import hf_config
from rljob_runtime.models.weights import read_weights, save_hf
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.weights.reshard.strategies import STRATEGIES

MIB = 2**20


def measure_cache(size: str, figures: Figures, *, repetitions: int) -> None:
    """Generation where a device has room for both layouts and four sequences."""
    work = next(w for w in generation.works(size) if w.name == "ragged, 4 groups of 8")
    length = work.prompt_lengths[1] + work.max_response_length
    form = SIZES[size]
    token = 2 * 4 * form.num_layers * form.num_kv_heads * form.head_dim
    with tempfile.TemporaryDirectory() as folder:
        path = make_model(Path(folder) / "model", form)
        update = read_weights(path)
        weights = sum(tensor.nbytes for tensor in update.values())
        limit = 2 * weights + 4 * length * token
        figures.add(f"{size}: limit of a device", limit / MIB, "MiB")
        rates: dict[str, list[float]] = {}
        for strategy in STRATEGIES:
            ledger = MemoryLedger(device="emulated:0", limit_bytes=limit)
            if strategy == "allgather":
                ledger.track(MemoryKind.UPDATE_WEIGHTS, update.values())
            room = limit - weights - ledger.total_bytes()
            engine = TorchRollout(
                path,
                dtype=torch.float32,
                max_sequences=min(32, room // token // length),
                max_length=length,
                cache_tokens=min(32 * length, room // token),
                ledger=ledger,
            )
            do = generation.around(engine)
            figures.add(
                f"{size}, {strategy}: samples in flight", min(32, room // token // length), ""
            )
            rates[strategy] = timed_tokens(do, work, repetitions)
            figures.add(f"{size}, {strategy}", statistics.median(rates[strategy]), "tokens/s")
        gain = statistics.median(rates["allgather-swap"]) / statistics.median(rates["allgather"])
        figures.add(f"{size}: tokens a second with the swap", gain, "×")


def measure_vllm(size: str, figures: Figures, *, repetitions: int) -> None:
    """Weights from memory through vLLM's public call, beside the same call with what was written to disk and
    read again: vLLM reads none by itself where it began without weights."""
    from rljob_runtime.rollout.rollout_vllm import VllmRollout

    with tempfile.TemporaryDirectory() as folder:
        form = SIZES[size]
        path = make_model(Path(folder) / "model", form)
        weights = {name: tensor.clone() for name, tensor in read_weights(path).items()}
        engine: Any = VllmRollout(
            path, dtype=torch.float32, max_sequences=8, max_length=64, seed=1, threads=2
        )

        def from_disk(turn: int) -> None:
            written = Path(folder) / f"version-{turn}"
            save_hf(weights.items(), folder=written, config=hf_config(form))
            engine.load_weights(read_weights(written).items(), version=turn)

        def from_memory(turn: int) -> None:
            engine.load_weights(weights.items(), version=turn)

        seconds: dict[str, list[float]] = {"memory": [], "disk": []}
        for turn in range(repetitions + 1):
            for name, load in (("memory", from_memory), ("disk", from_disk)):
                started = time.perf_counter()
                load(turn)
                seconds[name].append(time.perf_counter() - started)
        memory, disk = (statistics.median(seconds[name][1:]) for name in ("memory", "disk"))
        figures.add(f"vLLM, {size}: weights from memory", 1000 * memory, "ms")
        figures.add(f"vLLM, {size}: faster than over the disk", disk / memory, "×")
        engine.close()


def timed_tokens(do: Any, work: Any, repetitions: int) -> list[float]:
    """Tokens a second, after a turn that warms up."""
    found = []
    for turn in range(repetitions + 1):
        started = time.perf_counter()
        tokens = do(work, turn)
        found.append(tokens / (time.perf_counter() - started))
    return found[1:]
