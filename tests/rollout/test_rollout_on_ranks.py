"""The torch engine on ranks of every technique: tokens and log-probs are those of one rank."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import on_ranks
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import ARGUMENTS, engine_on_rank, grid_of, run_on_ranks

from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import ConfigError
from rljob_runtime.rollout.rollout_engine import Generated
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.rollout.rollout_torch import TorchRollout, make_torch_rollout

SaveReference = Callable[..., tuple[Any, Path]]
FEW = {"max_response_length": 10, "eos_ids": tuple(range(3, 9))}
"""Few tokens, and yet many a row is free before the others."""
SAMPLED = sampling(temperature=0.8, **FEW)
OTHER_WAYS = [sampling(greedy=True, **FEW), sampling(top_k=20, top_p=0.9, **FEW)]
CASES: dict[str, tuple[str, dict[str, int]]] = {
    "tensor": ("llama", {"tensor": 2}),
    "tensor, tied, fewer key heads than ranks": ("qwen3-tied", {"tensor": 4}),
    "tensor, biases everywhere": ("llama-biased", {"tensor": 2}),
    "tensor, experts of odd widths": ("qwen3-moe-odd-sizes", {"tensor": 2}),
    "tensor, latent attention, shared experts": ("deepseek-v3", {"tensor": 2}),
    "pipeline": ("qwen2-tied", {"pipeline": 3}),
    "tensor, pipeline, dense layers": ("qwen3-moe-some-dense", {"tensor": 2, "pipeline": 2}),
    "experts inside tensor": ("qwen3-moe", {"tensor": 2, "expert": 2}),
    "experts inside half of tensor": ("deepseek-v2-grouped", {"tensor": 4, "expert": 2}),
    "experts over data": ("qwen3-moe", {"data": 2, "expert": 2}),
    "experts over data and tensor, pipeline": (
        "deepseek-v3", {"data": 2, "tensor": 2, "pipeline": 2, "expert": 4},
    ),
}  # fmt: skip
DRAWN_IN_ALL_WAYS = {
    "tensor",
    "tensor, tied, fewer key heads than ranks",
    "pipeline",
    "tensor, pipeline, dense layers",
}
"""What ranks tell each other of a draw depends on tensor and pipeline, and on nothing of the model."""


def assert_same(found: dict[str, Generated], expected: dict[str, Generated]) -> None:
    assert found.keys() == expected.keys()
    for uid, sample in found.items():
        assert sample.token_ids == expected[uid].token_ids, uid
        assert sample.logprobs == pytest.approx(expected[uid].logprobs, abs=1e-5), uid
        assert sample.finish == expected[uid].finish


@pytest.mark.parametrize("case", CASES)
def test_tokens_and_logprobs_are_one_ranks(case: str, save_reference: SaveReference) -> None:
    family, degrees = CASES[case]
    path, groups = save_reference(family)[1], make_groups(samples=2)
    alone = TorchRollout(path, **ARGUMENTS)
    ways = [SAMPLED, *(OTHER_WAYS if case in DRAWN_IN_ALL_WAYS else [])]

    found = run_on_ranks(path, grid_of(**degrees), groups, ways)

    for way, by_model in zip(ways, found, strict=True):
        assert_same({uid: s for of in by_model for uid, s in of.items()}, run(alone, groups, way))


@pytest.mark.parametrize("case", ["tensor, pipeline, dense layers", "experts over data"])
def test_a_small_cache_with_shared_prompts_gives_ranks_the_same_tokens(
    case: str, save_reference: SaveReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, degrees = CASES[case]
    path, groups = save_reference(family)[1], make_groups([30, 5, 9, 17], samples=3)
    way = sampling(max_response_length=12, eos_ids=tuple(range(3, 9)))
    expected = run(TorchRollout(path, **ARGUMENTS), groups, way)
    monkeypatch.setattr("rljob_runtime.rollout.cache_layout.SHARE_FROM_BYTES", 0)

    [by_model] = run_on_ranks(path, grid_of(**degrees), groups, [way], cache_tokens=95)

    assert_same({uid: s for of in by_model for uid, s in of.items()}, expected)


def test_more_samples_of_one_model_than_of_the_other_hold_nobody_up(
    save_reference: SaveReference,
) -> None:
    path, grid = save_reference("qwen3-moe")[1], grid_of(data=2, expert=2)
    groups = make_groups([4], samples=3)
    expected = run(TorchRollout(path, **ARGUMENTS), groups, SAMPLED)

    [by_model] = run_on_ranks(path, grid, groups, [SAMPLED])

    assert_same(by_model[0], expected)
    assert by_model[1] == {}


def test_the_callers_test_ends_a_response_on_all_ranks(save_reference: SaveReference) -> None:
    path, groups = save_reference("qwen3")[1], make_groups(samples=2)
    way = sampling(eos_ids=(), stopped=lambda ids: sum(ids) > 350, max_response_length=10)

    [[found]] = run_on_ranks(path, grid_of(tensor=2), groups, [way])

    assert_same(found, run(TorchRollout(path, **ARGUMENTS), groups, way))
    assert {sample.finish for sample in found.values()} == {"stop", "length"}


def test_a_cache_holds_this_ranks_key_heads(save_reference: SaveReference) -> None:
    split, repeated, latent = (
        cache_bytes(save_reference(family)[1], tensor)
        for family, tensor in (("qwen3", 2), ("qwen3", 4), ("deepseek-v2", 2))
    )

    layers, rows, length = 3, 6, 64
    assert split == [layers * 2 * rows * 1 * length * 16 * 4] * 2
    assert repeated == [layers * 2 * rows * 1 * length * 16 * 4] * 4
    assert latent == [layers * rows * length * (12 + 8) * 4] * 2


def cache_bytes(path: Path, tensor: int) -> list[int]:
    def held(rank: int) -> int:
        ledger = MemoryLedger(device=f"cpu:{rank}")
        engine_on_rank(path, grid_of(tensor=tensor), ledger=ledger)
        return ledger.report().kind_peak_bytes[MemoryKind.KV_CACHE]

    return on_ranks(tensor, held)


@pytest.mark.parametrize(
    ("family", "degrees", "named"),
    [
        ("deepseek-v3", {"data": 3, "tensor": 2, "expert": 3}, "use one of 1, 2, 6"),
        ("llama-rope-longrope", {"tensor": 2}, "transformers computes it, on one device a model"),
    ],
)
def test_degrees_that_a_model_cannot_have_are_refused_by_name(
    family: str, degrees: dict[str, int], named: str, save_reference: SaveReference
) -> None:
    path = save_reference(family)[1]
    size = math.prod(degree for axis, degree in degrees.items() if axis != "expert")

    def refusal(_: int) -> str:
        with pytest.raises(ConfigError) as caught:
            groups = RolloutGroups(grid_of(**degrees), timeout_seconds=60)
            make_torch_rollout(path, groups=groups, **ARGUMENTS)
        return str(caught.value)

    for told in on_ranks(size, refusal):
        assert named in told
        assert "spec.rollout.parallelism" in told
        assert "use " in told
