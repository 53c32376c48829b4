"""Weights in bfloat16 on ranks that share a model: near one rank's, and near float32."""

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

from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.models.weights import save_hf
from rljob_runtime.update.update_ranks import UpdateRanks

BF16 = torch.bfloat16

# Eight bits of 10 layers' sums; and a router may send a token elsewhere for one of them.
TOLERANCE: dict[str, Any] = {"rel": 0.1, "abs": 0.02}


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str], Path]:
    """Saves a family's random model, whose weights bfloat16 can hold."""

    def save(family: str) -> Path:
        make_reference(family).bfloat16().save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor, data, ZeRO 1": ("qwen2-tied", {"tensor": 2, "data": 2, "zero": 1}),
    "ring, data, ZeRO 2": (
        "qwen3", {"context": 2, "context_algorithm": "ring", "data": 2, "zero": 2},
    ),
    "Ulysses, pipeline": ("qwen2-tied", {"context": 2, "pipeline": 2}),
    "pipeline, data, experts, ZeRO 2": (
        "qwen3-moe-deep", {"pipeline": 2, "data": 2, "expert": 2, "zero": 2},
    ),
    "latent attention, tensor": ("deepseek-v3", {"tensor": 2}),
    "tensor, data, ZeRO 3": ("qwen3", {"tensor": 2, "data": 2, "zero": 3}),
}  # fmt: skip


# Ten times a weight's distance to its neighbours, so that rounding hides no step.
RATE = 1e-2


def moved(weights: dict[str, torch.Tensor], start: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([(weights[name] - start[name]).float().flatten() for name in sorted(start)])


@pytest.mark.parametrize("case", CASES)
def test_ranks_learn_what_one_rank_and_float32_do(case: str, save: Callable[[str], Path]) -> None:
    family, degrees = CASES[case]
    path = save(family)
    grid = grid_of(path, **degrees)
    alone = {}
    for dtype in (BF16, torch.float32):
        engine, policy = make_engine(path, UpdateRanks(), dtype=dtype, learning_rate=RATE)
        start = whole(policy)
        alone[dtype] = train(engine, UpdateRanks(), range(2)), whole(policy)

    def run(_: int) -> Any:
        ranks = ranks_of(grid)
        engine, policy = make_engine(path, ranks, dtype=BF16, learning_rate=RATE)
        return train(engine, ranks, range(2)), whole(policy)

    ranks = on_ranks(grid.size, run, seconds=300)

    for metrics, weights in ranks:
        for name, weight in weights.items():
            assert weight.equal(ranks[0][1][name]), name
        for metrics_alone, weights_alone in alone.values():
            for step, other in zip(metrics, metrics_alone, strict=True):
                for name in ("loss", "gradient_norm", "entropy"):
                    assert step[name] == pytest.approx(other[name], **TOLERANCE), name
            similar = torch.cosine_similarity(
                moved(weights, start), moved(weights_alone, start), dim=0
            )
            assert similar > 0.97, similar


@pytest.mark.parametrize("moments_dtype", ["float32", "float8"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_ranks_that_load_what_they_saved_go_on_bit_for_bit(
    zero: int, moments_dtype: str, save: Callable[[str], Path], tmp_path: Path
) -> None:
    path = save("qwen3")
    grid = grid_of(path, tensor=2, data=2, zero=zero)

    def run(rank: int) -> Any:
        ranks = ranks_of(grid)
        settings: dict[str, Any] = {"dtype": BF16, "moments_dtype": moments_dtype}
        engine, policy = make_engine(path, ranks, **settings)
        train(engine, ranks, range(1))
        state = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
        save_hf(policy.full_weights(), folder=tmp_path / str(rank), source=path)
        through = train(engine, ranks, range(1, 2)), whole(policy)
        other, policy = make_engine(path, ranks, **settings)
        policy.load(tmp_path / str(rank))
        other.load_state_dict(state)
        main = sum(tensor.numel() for name, tensor in state.items() if ".main." in name)
        items = sum(weight.numel() for _, weight in policy.model.trained_parameters())
        return through, (train(other, ranks, range(1, 2)), whole(policy)), main, items

    found = on_ranks(grid.size, run, seconds=300)

    for (metrics, weights), (again, resumed), main, items in found:
        assert again == metrics
        assert all(resumed[name].equal(weight) for name, weight in weights.items())
        assert all(found[0][0][1][name].equal(weight) for name, weight in weights.items())
        assert {0: main == items, 3: main == 0}.get(zero, items // 4 < main < items)


def test_main_weights_rest_on_the_host_with_the_optimizer(save: Callable[[str], Path]) -> None:
    path = save("qwen2-tied")
    grid = grid_of(path, data=2, zero=1)

    def run(_: int) -> Any:
        ranks, found = ranks_of(grid), []
        for swap in (None, HostSwap(CpuBackend(name="emulated:0"))):
            engine, policy = make_engine(path, ranks, dtype=BF16, swap=swap)
            found.append((train(engine, ranks, range(2)), whole(policy)))
        return found

    for (metrics, weights), (moved, others) in on_ranks(grid.size, run, seconds=120):
        assert moved == metrics
        assert all(others[name].equal(weight) for name, weight in weights.items())
