"""One rank of a vLLM engine that several processes share, as a program: its results as JSON.

A fork would do if vLLM's threads did not live in the test's process.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rljob_runtime.engines.base import PromptGroup, Sampling
from rljob_runtime.engines.rollout_vllm import VllmRollout
from rljob_runtime.models.weights import read_weights

PROMPTS = [[257, 10, 20, 30], [257, 99], [257, *range(40)]]
EOS = 258
MAX_LENGTH = 64


def groups(replica: int) -> list[PromptGroup]:
    """Two samples a prompt; each replica has seeds of its own."""
    return [
        PromptGroup(
            group=f"train/0/{g}",
            token_ids=prompt,
            uids=[f"train/0/{g}/{s}" for s in range(2)],
            seeds=[1000 * replica + 10 * g + s for s in range(2)],
        )
        for g, prompt in enumerate(PROMPTS)
    ]


def sampling(*, greedy: bool) -> Sampling:
    """Twelve tokens at most."""
    return Sampling(
        temperature=1.0, greedy=greedy, top_p=1.0, top_k=0, max_response_length=12, eos_ids=(EOS,)
    )


def results(engine: VllmRollout, replica: int) -> dict[str, list[list[float]]]:
    """Token ids and log-probs of sampled and of greedy responses."""
    found: dict[str, list[list[float]]] = {}
    for greedy in (False, True):
        for chunk in engine.generate(groups(replica), sampling(greedy=greedy)):
            for sample in chunk:
                found[f"{'greedy' if greedy else 'drawn'} {sample.uid}"] = [
                    list(sample.token_ids),
                    sample.logprobs,
                ]
    return found


def changed(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a later version."""
    return {name: 1.1 * weight for name, weight in read_weights(path).items()}


def shared_memory() -> list[str]:
    """Files of /dev/shm that this process has mapped; those without a name end in `(deleted)`."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if "/dev/shm/psm_" in line})


def on_ranks(
    model: Path, ranks: int, *, tensor: int, folder: Path, int8: bool = False
) -> list[dict[str, Any]]:
    """What `main` prints on each rank. folder: of their logs."""
    command = [sys.executable, __file__, str(model), f"file://{folder}/meeting"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(tensor), str(int(int8))],
            stdout=subprocess.PIPE,
            stderr=(folder / f"rank-{rank}.log").open("w"),
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        log = (folder / f"rank-{rank}.log").read_text()
        assert process.returncode == 0, f"rank {rank} of {ranks}: {log[-3000:]}"
    return [json.loads(text.splitlines()[-1]) for text in said]


def main(path: Path, meeting: str, rank: int, ranks: int, tensor: int, int8: int) -> None:
    """Print what this rank got, and that the job's process group still works."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    engine = VllmRollout(
        path,
        dtype=torch.float32,
        max_sequences=4,
        max_length=MAX_LENGTH,
        seed=1,
        tensor=tensor,
        int8=bool(int8),
    )
    found = results(engine, rank // tensor)
    engine.load_weights(changed(path).items(), version=1)
    probed = engine.probe(PROMPTS)
    total = torch.ones(1)
    dist.all_reduce(total)
    told = {"samples": found, "probed": probed, "ranks": int(total), "shared": shared_memory()}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    folder, meeting, *numbers = sys.argv[1:]
    main(Path(folder), meeting, *map(int, numbers))
