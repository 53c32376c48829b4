"""Seconds of a step with second copies of what two ranks alone hold, beside the same step without any.

Two tensor ranks, a thread each, train the parallel decoder on groups of 8 samples over gloo on this machine;
then both score the samples, as what follows a step in a run and hides what is sent. Turns with `peer`, with
`host` and without follow each other in the same processes, and each ends when its copies are whole.
"""

import argparse
import secrets
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.engines.scaling import shape_of
from benchmarks.engines.update import SETTINGS, Work, weighted, works
from benchmarks.support.models import SIZES, make_model
from benchmarks.support.ranks import DEADLINE_SECONDS, on_ranks
from benchmarks.support.results import Result, report, summarize
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.children.owned_folders import MemoryFolder
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.parallel.decoder.parameters import purposes
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_torch import TorchUpdateEngine
from rljob_runtime.worker.second_copies import HostCopies, PeerCopies, SecondCopies

PARTS = ["policy/weights", "policy/state"]
WITHOUT = "without"
MOST_SLOWER = 0.9
"""As a gain: a ninth more time than without."""
GROUPS = {"0.8M": 2, "24.7M": 1}
Seconds = dict[str, list[float]]


def engine_of(
    path: Path,
) -> tuple[TorchUpdateEngine, Callable[[], dict[str, dict[str, torch.Tensor]]]]:
    """This rank's, and what it alone holds."""
    grid = RankGrid(UpdateDegrees(data=1, tensor=2))
    groups = ProcessGroups(grid, timeout_seconds=DEADLINE_SECONDS)
    model = load_parallel(path, groups, dtype=torch.float32)
    engine = TorchUpdateEngine(
        model,
        optimizer=SETTINGS,
        total_steps=1000,
        temperature=1.0,
        ranks=UpdateRanks.of(groups, dist.group.WORLD),
        purposes=purposes(model, shape_of(path)),
        ledger=MemoryLedger(device="unlimited"),
    )

    def live() -> dict[str, dict[str, torch.Tensor]]:
        weights = {name: own.detach() for name, own in model.trained_parameters()}
        return dict(zip(PARTS, (weights, engine.state_dict()), strict=True))

    return engine, live


def turns(
    path: Path, work: Work, number: int, folder: MemoryFolder, rank: int
) -> tuple[Seconds, Seconds, int]:
    """Seconds of each turn by kind, of them until the device went on, and bytes of a copy."""
    kinds: dict[str, SecondCopies] = {
        WITHOUT: SecondCopies(),
        "peer": PeerCopies(rank, [1, 0], PARTS),
        "host": HostCopies(folder, rank, PARTS),
    }
    kinds["peer"].join(DEADLINE_SECONDS)
    (engine, live), batch = engine_of(path), work.batch()
    whole: Seconds = {kind: [] for kind in kinds}
    until_on: Seconds = {kind: [] for kind in kinds}
    for turn in range(number + 2):  # both places of a copy are filled once before
        for kind, copies in kinds.items():
            dist.barrier()
            started = time.perf_counter()
            engine.train([batch], weighted, groups_with_signal=work.num_groups)
            trained = time.perf_counter()
            copies.keep(turn, live)
            goes_on = time.perf_counter()
            engine.logprobs(batch)
            copies.settle()
            dist.barrier()
            if turn >= 2:
                whole[kind].append(time.perf_counter() - started)
                until_on[kind].append(goes_on - trained)
    num_bytes = sum(own.nbytes for tensors in live().values() for own in tensors.values())
    return whole, until_on, num_bytes


def measure(size: str, number: int) -> list[Result]:
    """Of one model."""
    work = works(size, GROUPS[size])[0]
    token = secrets.token_hex()
    with tempfile.TemporaryDirectory() as name:
        path, folder = make_model(Path(name) / "model", SIZES[size]), MemoryFolder(token)
        try:
            whole, until_on, num_bytes = on_ranks(2, partial(turns, path, work, number, folder))[0]
        finally:
            folder.close()
    copy = f"{num_bytes / 2**20:,.0f} MiB"
    found = [
        summarize(
            f"{size}, `{kind}`, {copy} a rank",
            ours=whole[kind],
            peers={WITHOUT: whole[WITHOUT]},
            unit="s",
            better="lower",
            target=MOST_SLOWER,
        )
        for kind in ("peer", "host")
    ]
    for kind in ("peer", "host"):
        median = sorted(until_on[kind])[len(until_on[kind]) // 2]
        print(f"{size} {kind}: the device goes on after {median * 1000:.1f} ms ({copy})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=list(GROUPS), choices=[*GROUPS])
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = [found for size in arguments.sizes for found in measure(size, arguments.turns)]
    report(results, packages=["rljob", "torch"], file=arguments.json)


if __name__ == "__main__":
    main()
