"""Ranks of a vLLM engine that several processes share: the results of each."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm_forks import forked

from rljob_api.model.architecture import read_shape
from rljob_api.topology.devices import RolloutDegrees
from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_plan.resharding.job_layouts import VLLM_VOCABULARY_STEP
from rljob_plan.resharding.layouts import rollout_layout
from rljob_runtime.models.config import read_config
from rljob_runtime.models.weights import read_weights
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling
from rljob_runtime.rollout.rollout_vllm import VllmRollout
from rljob_runtime.weights.reshard.parcels import box_view

PROMPTS = [[257, 10, 20, 30], [257, 99], [257, *range(40)]]
EOS = 258
MAX_LENGTH = 64
RANK_SECONDS = 200.0


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


def slices(
    path: Path, weights: Mapping[str, Tensor], rank: int, ranks: int, tensor: int
) -> Iterator[tuple[TensorBox, Tensor]]:
    """What a rank holds of these weights, as a reshard brings it."""
    shape = read_shape(read_config(path), name="the small model")
    assert shape is not None
    degrees = RolloutDegrees(data=ranks // tensor, tensor=tensor)
    layout = rollout_layout(shape, degrees, vocabulary_step=VLLM_VOCABULARY_STEP)
    for piece in layout.local_boxes(rank):
        whole = weights[piece.tensor.name]
        rows, columns = (*whole.shape, 1)[:2]
        yield piece, box_view(whole, Box(0, rows, 0, columns), piece.box).clone()


def shared_memory() -> list[str]:
    """Files of /dev/shm that this process has mapped; those without a name end in `(deleted)`."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if "/dev/shm/psm_" in line})


def on_ranks(
    model: Path, ranks: int, *, tensor: int, folder: Path, int8: bool = False
) -> list[dict[str, Any]]:
    """What `live` found on each rank. folder: of their logs and results."""
    logs = [folder / f"rank-{rank}.log" for rank in range(ranks)]
    processes = [
        forked(live, model, folder, rank, ranks, tensor, int8, log=log, environment={})
        for rank, log in enumerate(logs)
    ]
    try:
        for process in processes:
            process.join(RANK_SECONDS)
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        text = logs[rank].read_text()
        assert process.exitcode == 0, f"rank {rank} of {ranks}: {process.exitcode}: {text[-3000:]}"
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def live(path: Path, folder: Path, rank: int, ranks: int, tensor: int, int8: bool) -> None:
    """Write what this rank got, and that the job's process group still works."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    engine = VllmRollout(
        path,
        dtype=torch.float32,
        max_sequences=4,
        max_length=MAX_LENGTH,
        seed=1,
        tensor=tensor,
        int8=int8,
    )
    found = results(engine, rank // tensor)
    engine.load_weights(changed(path).items(), version=1)
    told: dict[str, Any] = {
        "samples": found,
        "probed": engine.probe(PROMPTS),
        "shared": shared_memory(),
    }
    if not int8:
        engine.load_weights(read_weights(path).items(), version=2)
        engine.take_slices(slices(path, changed(path), rank, ranks, tensor), version=3)
        told["sliced"] = engine.probe(PROMPTS)
    total = torch.ones(1)
    dist.all_reduce(total)
    told["ranks"] = int(total)
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))
