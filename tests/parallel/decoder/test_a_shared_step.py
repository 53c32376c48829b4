"""The update engine on ranks that share a model: metrics, weights and states of one rank."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # once, not in every fork
from forked_ranks import on_ranks
from parallel_training import grid_of, grpo, make_batch
from reference_models import make_reference
from shared_steps import make_engine, ranks_of, train, whole

from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.errors import CheckpointError, ConfigError
from rljob_runtime.models.weights import save_hf
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.weights.held_policy import load_local_policy


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str], Path]:
    """Saves a family's random model."""

    def save(family: str) -> Path:
        make_reference(family).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor": ("qwen2-tied", {"tensor": 2}),
    "context": ("qwen3", {"context": 2}),
    "ring, data, ZeRO 1": (
        "qwen2-tied", {"context": 2, "context_algorithm": "ring", "data": 2, "zero": 1},
    ),
    "pipeline, tensor": ("qwen2-tied", {"pipeline": 2, "tensor": 2}),
    "virtual stages, data, experts, ZeRO 2": (
        "qwen3-moe-deep",
        {"pipeline": 2, "virtual_pipeline": 2, "data": 2, "expert": 2, "zero": 2},
    ),
    "experts over data": ("qwen3-moe", {"data": 2, "expert": 2}),
    "tensor, data, ZeRO 1": ("qwen3", {"tensor": 2, "data": 2, "zero": 1}),
    "tensor, data, experts, ZeRO 2": (
        "deepseek-v3", {"tensor": 2, "data": 2, "expert": 2, "zero": 2},
    ),
    "data, tied, ZeRO 3": ("qwen2-tied", {"data": 2, "zero": 3}),
    "tensor, context, odd experts, ZeRO 3": (
        "qwen3-moe-odd-sizes", {"tensor": 2, "context": 2, "zero": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_rank_reports_and_learns_what_one_rank_does(
    case: str, save: Callable[[str], Path]
) -> None:
    family, degrees = CASES[case]
    path = save(family)
    grid = grid_of(path, **degrees)
    engine, policy = make_engine(path, UpdateRanks())
    expected = train(engine, UpdateRanks(), range(2)), whole(policy)

    def run(_: int) -> Any:
        ranks = ranks_of(grid)
        engine, policy = make_engine(path, ranks)
        return train(engine, ranks, range(2)), whole(policy)

    for metrics, weights in on_ranks(grid.size, run, seconds=300):
        assert [step["skipped"] for step in metrics] == [0, 0]
        for found, alone in zip(metrics, expected[0], strict=True):
            assert found == pytest.approx(alone, rel=1e-4, abs=1e-5)
        assert weights.keys() == expected[1].keys()
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[1][name], rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("zero", [1, 3])
def test_an_optimizer_on_the_host_steps_bit_for_bit_and_goes_on_so(
    zero: int, save: Callable[[str], Path]
) -> None:
    path = save("qwen2-tied")
    grid = grid_of(path, data=2, zero=zero)

    def run(_: int) -> Any:
        ranks, found = ranks_of(grid), []
        for swap in (None, HostSwap(CpuBackend(name="emulated:0"))):
            engine, policy = make_engine(path, ranks, swap=swap)
            train(engine, ranks, range(1))
            engine.load_state_dict({n: t.clone() for n, t in engine.state_dict().items()})
            found.append((train(engine, ranks, range(1, 2)), whole(policy)))
        return found

    for (metrics, weights), (moved, others) in on_ranks(grid.size, run, seconds=120):
        assert moved == metrics
        assert all(others[name].equal(weight) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("family", "zero"), [("qwen3", 0), ("qwen3", 2), ("qwen3", 3), ("qwen3-moe-odd-sizes", 3)]
)
def test_ranks_that_load_what_they_saved_go_on_bit_for_bit(
    family: str, zero: int, save: Callable[[str], Path], tmp_path: Path
) -> None:
    path = save(family)
    grid = grid_of(path, tensor=2, data=2, zero=zero)

    def run(rank: int) -> Any:
        ranks = ranks_of(grid)
        engine, policy = make_engine(path, ranks)
        train(engine, ranks, range(1))
        state = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
        save_hf(policy.full_weights(), folder=tmp_path / str(rank), source=path)
        through = train(engine, ranks, range(1, 2)), whole(policy)
        other, policy = make_engine(path, ranks)
        policy.load(tmp_path / str(rank))
        other.load_state_dict(state)
        resumed = train(other, ranks, range(1, 2)), whole(policy)
        return through, resumed

    for (metrics, weights), (again, resumed) in on_ranks(grid.size, run, seconds=300):
        assert again == metrics
        assert all(resumed[name].equal(weight) for name, weight in weights.items())


def test_a_state_of_another_part_is_refused_whole(save: Callable[[str], Path]) -> None:
    path = save("qwen3")
    engine, _ = make_engine(path, UpdateRanks())
    whole_state = engine.state_dict()

    def run(_: int) -> str:
        engine, _policy = make_engine(path, ranks_of(grid_of(path, tensor=2)))
        with pytest.raises(CheckpointError) as caught:
            engine.load_state_dict(whole_state)
        assert engine.step == 0
        return str(caught.value)

    for message in on_ranks(2, run, seconds=120):
        assert "resume with the degrees that it was saved with" in message


def test_a_loss_that_is_not_finite_on_one_replica_skips_the_step_of_all_ranks(
    save: Callable[[str], Path],
) -> None:
    path = save("qwen2-tied")
    grid = grid_of(path, tensor=2, data=2)

    def run(rank: int) -> Any:
        ranks = ranks_of(grid)
        engine, policy = make_engine(path, ranks)
        before = whole(policy)
        batch = make_batch(1)
        if ranks.share[0] == 1:
            batch.scalars["advantage"].fill_(float("nan"))
        metrics = engine.train([batch], grpo, groups_with_signal=1)
        after = whole(policy)
        return metrics, all(after[name].equal(before[name]) for name in before)

    for metrics, fixed_fields_rule in on_ranks(grid.size, run, seconds=120):
        assert math.isnan(metrics["gradient_norm"])
        assert metrics["skipped"] == 1
        assert fixed_fields_rule


def test_a_model_that_transformers_computes_cannot_be_shared(save: Callable[[str], Path]) -> None:
    path = save("qwen3")
    grid = grid_of(path, tensor=2)
    config = json.loads((path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "longrope"}
    (path / "config.json").write_text(json.dumps(config))

    def load(_: int) -> None:
        with pytest.raises(ConfigError, match=r"rope_type=longrope .* cannot be shared by devices"):
            load_local_policy(path, ranks_of(grid), dtype=torch.float32)

    on_ranks(2, load, seconds=60)
