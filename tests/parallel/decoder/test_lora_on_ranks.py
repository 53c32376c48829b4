"""Adapters on ranks that share a model: metrics, adapters and merged weights of one rank."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # once, not in every fork
from forked_ranks import on_ranks
from parallel_training import grid_of
from reference_models import make_reference
from shared_steps import make_engine, ranks_of, train, whole
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.lora import Lora
from rljob_api.topology.resolved import resolve
from rljob_plan.memory import plan_memory
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.models.adapter_files import save_adapter
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.weights.held_policy import LocalPolicy, shape_of

ALL = Lora(rank=3, alpha=6, target_modules=["all-linear"])
PEFTS = Lora(rank=4)
"""PEFT's modules: the first layer's keys need no gradient."""
CASES: dict[str, tuple[str, dict[str, Any], Lora]] = {
    "tensor": ("qwen2-tied", {"tensor": 2}, ALL),
    "tensor, latent attention, shared experts": ("deepseek-v3", {"tensor": 2}, ALL),
    "repeated key heads": ("qwen3", {"tensor": 4}, ALL),
    "data, ZeRO 1": ("qwen3", {"data": 2, "zero": 1}, ALL),
    "data, ZeRO 2": ("qwen3", {"data": 2, "zero": 2}, ALL),
    "data, ZeRO 3": ("qwen2-tied", {"data": 2, "zero": 3}, ALL),
    "context": ("qwen3", {"context": 2}, PEFTS),
    "pipeline": ("qwen2-tied", {"pipeline": 2}, PEFTS),
    "tensor, data, experts, ZeRO 3": ("qwen3-moe-odd-sizes", {"tensor": 2, "data": 2, "zero": 3}, ALL),
}  # fmt: skip


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str], Path]:
    """Saves a family's random model."""

    def save(family: str) -> Path:
        make_reference(family).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


def adapters_of(policy: LocalPolicy) -> dict[str, torch.Tensor]:
    return {name: adapter.detach().clone() for name, adapter in policy.full_adapters()}


@pytest.mark.parametrize("case", CASES)
def test_every_rank_trains_the_adapters_that_one_rank_does(
    case: str, save: Callable[[str], Path]
) -> None:
    family, degrees, lora = CASES[case]
    path = save(family)
    grid = grid_of(path, **degrees)
    engine, policy = make_engine(path, UpdateRanks(), lora=lora)
    expected = train(engine, UpdateRanks(), range(2)), adapters_of(policy), whole(policy)

    def run(_: int) -> Any:
        ranks = ranks_of(grid)
        engine, policy = make_engine(path, ranks, lora=lora)
        return train(engine, ranks, range(2)), adapters_of(policy), whole(policy)

    for metrics, adapters, weights in on_ranks(grid.size, run, seconds=300):
        assert [step["skipped"] for step in metrics] == [0, 0]
        for found, alone in zip(metrics, expected[0], strict=True):
            assert found == pytest.approx(alone, rel=1e-4, abs=1e-5)
        for mine, whole_ones in ((adapters, expected[1]), (weights, expected[2])):
            assert mine.keys() == whole_ones.keys()
            for name, weight in mine.items():
                torch.testing.assert_close(weight, whole_ones[name], rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize(("tensor", "zero"), [(2, 0), (1, 3)])
def test_ranks_that_load_the_adapters_that_they_saved_go_on_bit_for_bit(
    tensor: int, zero: int, save: Callable[[str], Path], tmp_path: Path
) -> None:
    path = save("qwen3")
    grid = grid_of(path, tensor=tensor, data=2 // tensor, zero=zero)

    def run(rank: int) -> Any:
        ranks, folder = ranks_of(grid), tmp_path / str(rank)
        engine, policy = make_engine(path, ranks, lora=ALL)
        train(engine, ranks, range(1))
        state = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
        save_adapter(policy.full_adapters(), ALL, base=path, folder=folder)
        through = train(engine, ranks, range(1, 2)), adapters_of(policy)
        other, policy = make_engine(path, ranks, lora=ALL)
        policy.load(folder)
        other.load_state_dict(state)
        return through, (train(other, ranks, range(1, 2)), adapters_of(policy))

    for (metrics, adapters), (again, resumed) in on_ranks(grid.size, run, seconds=300):
        assert again == metrics
        assert all(resumed[name].equal(adapter) for name, adapter in adapters.items())


@pytest.mark.parametrize(
    "degrees", [{}, {"tensor": 2}, {"data": 2, "zero": 1}, {"data": 2, "zero": 3}]
)
def test_the_ledger_holds_what_is_planned(
    degrees: dict[str, int], save: Callable[[str], Path]
) -> None:
    path = save("qwen3")
    shape, size = shape_of(path), 2 if degrees else 1
    assert shape is not None

    def run(_: int) -> tuple[int, int, int]:
        ledger = MemoryLedger(device="unlimited")
        ranks = ranks_of(grid_of(path, **degrees)) if degrees else UpdateRanks()
        engine, _policy = make_engine(path, ranks, lora=PEFTS, ledger=ledger)
        train(engine, ranks, range(1))
        peaks = ledger.report().kind_peak_bytes
        weights = ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS)
        return weights, ledger.kind_bytes(MemoryKind.OPTIMIZER), peaks["gradients"]

    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"]["update"] |= {"parallelism": degrees, "lora": PEFTS.model_dump(by_alias=True)}
    job["spec"]["accelerator"]["devicesPerNode"] = size
    memory = plan_memory(resolve(read_job(job)).spec, shape)
    parts = {phase.name: phase for phase in memory.phases}["update"].parts
    expected = (
        parts["update weights"] + parts["adapters"], parts["optimizer"], parts["gradients"],
    )  # fmt: skip
    for found in on_ranks(size, run, seconds=120):
        assert found == pytest.approx(expected, rel=0.03)
