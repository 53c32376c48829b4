"""Samples of several turns on devices that share a model: one asks, all go on alike."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import on_ranks
from rollouts import make_groups, run
from rollouts_on_ranks import ARGUMENTS, grid_of, shares
from tool_samples import Echo, Held, Late, how

from rljob_api.spec.environment import Environment
from rljob_runtime.errors import WorkerError
from rljob_runtime.rollout.partners import SilentRunner
from rljob_runtime.rollout.rollout_engine import Generated
from rljob_runtime.rollout.rollout_grid import RolloutPurpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.task.environments.environment import GameSeed
from rljob_runtime.worker.rollout_replica import pack, unpack

SaveReference = Callable[..., tuple[Any, Path]]


class Hasty(Held):
    """Waited for no longer than a moment."""

    def most_seconds(self, calls: int) -> float:
        return 0.01


LAYOUTS = {
    "tensor": ("qwen3", {"tensor": 2}),
    "pipeline": ("qwen3", {"pipeline": 2}),
    "experts over models": ("qwen3-moe", {"data": 2, "expert": 2}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_devices_that_share_a_model_draw_what_one_device_draws(
    name: str, save_reference: SaveReference
) -> None:
    family, degrees = LAYOUTS[name]
    path, grid, groups = save_reference(family)[1], grid_of(**degrees), make_groups(samples=2)

    def device(rank: int) -> dict[str, Generated]:
        own = RolloutGroups(grid, timeout_seconds=60)
        replica = own[RolloutPurpose.REPLICA]
        pool = Late() if replica is None or replica.rank() == 0 else SilentRunner()
        engine = TorchRollout(path, groups=own, **ARGUMENTS)
        return run(engine, shares(groups, grid, rank), how(pool))

    by_rank = on_ranks(grid.size, device, seconds=120)

    expected = run(TorchRollout(path, **ARGUMENTS), groups, how(Echo()))
    assert any(sample.turns > 1 for sample in expected.values())
    if grid.degrees.data == 1:
        assert by_rank[0] == by_rank[1]
    found = by_rank[0] | by_rank[-1]
    assert found.keys() == expected.keys()
    for uid, sample in found.items():
        assert (sample.token_ids, sample.drawn) == (expected[uid].token_ids, expected[uid].drawn)
        assert sample.logprobs == pytest.approx(expected[uid].logprobs, abs=1e-5)


def test_what_nobody_answers_is_an_error_on_all_of_them(save_reference: SaveReference) -> None:
    path, grid = save_reference("qwen3")[1], grid_of(tensor=2)

    def device(rank: int) -> str:
        pool = Hasty() if rank == 0 else SilentRunner()
        engine = TorchRollout(path, groups=RolloutGroups(grid, timeout_seconds=60), **ARGUMENTS)
        with pytest.raises(WorkerError) as caught:
            run(engine, make_groups(), how(pool))
        return str(caught.value)

    first, second = on_ranks(2, device, seconds=120)

    assert "calls of tools (spec.rollout.tools) was answered in" in first
    assert first == second


def test_a_prompt_that_is_a_game_reaches_the_other_devices_whole() -> None:
    game = GameSeed(
        environment=Environment(name="acme.echo", params={"a": [1, {"b": "é"}]}), seed=7
    )
    groups = [replace(group, game=game) for group in make_groups()]

    assert unpack(pack(groups)) == groups
