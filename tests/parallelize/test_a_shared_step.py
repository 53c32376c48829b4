"""The update engine on ranks that share a model: metrics, weights and states of one rank."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked_ranks import on_ranks
from parallel_training import SETTINGS, grid_of, grpo, make_batch
from reference_models import make_reference

from rljob_runtime.engines.update_ranks import UpdateRanks
from rljob_runtime.engines.update_torch import UpdateEngine
from rljob_runtime.errors import CheckpointError, ConfigError, WorkerError
from rljob_runtime.parallel.groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.states.held_policy import HeldPolicy, load_held

STEPS = 4


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str], Path]:
    """Saves a family's random model."""

    def save(family: str) -> Path:
        make_reference(family).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


def ranks_of(grid: RankGrid) -> UpdateRanks:
    return UpdateRanks.of(ProcessGroups(grid, timeout_seconds=60), dist.group.WORLD)


def make_engine(path: Path, ranks: UpdateRanks) -> tuple[UpdateEngine, HeldPolicy]:
    policy = load_held(path, ranks, dtype=torch.float32)
    engine = UpdateEngine(
        policy.model,
        optimizer=SETTINGS,
        total_steps=STEPS,
        temperature=0.8,
        ranks=ranks,
        purposes=policy.purposes,
    )
    return engine, policy


def train(engine: UpdateEngine, ranks: UpdateRanks, steps: range) -> list[dict[str, float]]:
    """Each step has two micro-batches, of which replicas take every so many."""
    replica, replicas = ranks.share
    found = []
    for step in steps:
        batches = [make_batch(2 * step), make_batch(2 * step + 1)]
        own = batches[replica::replicas]
        found.append(engine.train(own, grpo, groups_with_signal=len(own)))
    return found


def whole(policy: HeldPolicy) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in policy.whole_weights()}


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


@pytest.mark.parametrize("zero", [0, 2])
def test_ranks_that_load_what_they_saved_go_on_bit_for_bit(
    zero: int, save: Callable[[str], Path], tmp_path: Path
) -> None:
    path = save("qwen3")
    grid = grid_of(path, tensor=2, data=2, zero=zero)

    def run(rank: int) -> Any:
        ranks = ranks_of(grid)
        engine, policy = make_engine(path, ranks)
        train(engine, ranks, range(2))
        state = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
        held = {name: weight.clone() for name, weight in engine.weights()}
        through = train(engine, ranks, range(2, 4)), whole(policy)
        other, policy = make_engine(path, ranks)
        for name, weight in policy.model.named_hf_parameters():
            weight.data.copy_(held[name])
        other.load_state_dict(state)
        resumed = train(other, ranks, range(2, 4)), whole(policy)
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


def test_a_loss_that_is_not_finite_on_one_replica_stops_all_ranks_with_nothing_applied(
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
        with pytest.raises(WorkerError) as caught:
            engine.train([batch], grpo, groups_with_signal=1)
        after = whole(policy)
        return str(caught.value), all(after[name].equal(before[name]) for name in before)

    for message, unchanged in on_ranks(grid.size, run, seconds=120):
        assert "not finite on update ranks [2, 3]" in message
        assert unchanged


def test_a_model_that_transformers_computes_cannot_be_shared(save: Callable[[str], Path]) -> None:
    path = save("qwen3")
    grid = grid_of(path, tensor=2)
    config = json.loads((path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "longrope"}
    (path / "config.json").write_text(json.dumps(config))

    def load(_: int) -> None:
        with pytest.raises(ConfigError, match=r"rope_type=longrope .* cannot be shared by devices"):
            load_held(path, ranks_of(grid), dtype=torch.float32)

    on_ranks(2, load, seconds=60)
