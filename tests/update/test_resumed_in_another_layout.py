"""A checkpoint of some ranks, loaded by others: what is trained from there is what one rank trains."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_steps import MODELS, assert_alike, save_model, setup_of, spec_of, step
from forked_ranks import on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_training import grid_of
from shared_steps import ranks_of

from rljob_runtime.errors import CheckpointError
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.record.digests import RankDigest, digest_of
from rljob_runtime.update.state_places import (
    SavedStates,
    StateRange,
    StateSegment,
    WeightSpan,
    state_segments,
)
from rljob_runtime.update.update_table import make_torch, make_update
from rljob_runtime.weights.held_policy import load_local_policy
from rljob_runtime.worker.digests import weights_sums
from rljob_runtime.worker.trained_model import TrainedModel

TENSOR, ZERO, ROWS = {"tensor": 2}, {"data": 2, "zero": 1}, {"data": 2, "zero": 3}
MOVES: dict[str, tuple[str, tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "tensor to a shared optimizer": ("qwen2", ("torch", TENSOR), ("torch", ZERO)),
    "rows to a pipeline": ("qwen3", ("torch", ROWS), ("torch", {"pipeline": 2})),
    "experts by number to cut ones": (
        "experts",
        ("torch", {"data": 2, "expert": 2, "zero": 2}),
        ("torch", TENSOR),
    ),
    "megatron": ("qwen2", ("megatron", TENSOR), ("megatron", ZERO)),
    "megatron's latent experts": (
        "latent",
        ("megatron", {"data": 2, "expert": 2, "zero": 1}),
        ("megatron", {"tensor": 2, "data": 2, "expert": 2}),
    ),
    "torch to megatron": ("qwen3", ("torch", ZERO), ("megatron", TENSOR)),
}


def trained(folder: Path, engine: str, grid: RankGrid) -> TrainedModel:
    ranks = ranks_of(grid)
    held = load_local_policy(folder, ranks, dtype=torch.float32)
    made = make_update(setup_of(folder, spec_of(engine=engine), ranks, held))
    return TrainedModel(shard=held, engine=made, ranks=ranks, source=folder)


def digest(sums: list[dict[str, int]]) -> str:
    """Of the weights of all ranks."""
    return digest_of([RankDigest(weights=own) for own in sums], previous="").weights


@pytest.mark.parametrize("move", MOVES)
def test_ranks_of_another_layout_go_on_where_others_stopped(
    both: Any, tmp_path: Path, move: str
) -> None:
    torch.set_num_threads(1)
    name, *layouts = MOVES[move]
    folder, checkpoint = save_model(tmp_path / "model", MODELS[name]), tmp_path / "checkpoint"
    batches = [both[0].make_batch(2, 2, seed=seed) for seed in (1, 2)]
    loss = both[0].make_loss()
    (first, second), grids = layouts, [grid_of(folder, **degrees) for _, degrees in layouts]

    def save(_: int) -> dict[str, int]:
        model = trained(folder, first[0], grids[0])
        replica, replicas = model.ranks.share
        step(model.engine, batches[replica::replicas], loss)
        model.save(checkpoint)
        return weights_sums(model.shard, name="policy")

    def go_on(_: int) -> Any:
        model = trained(folder, second[0], grids[1])
        model.load(checkpoint)
        sums = weights_sums(model.shard, name="policy")
        replica, replicas = model.ranks.share
        found = step(model.engine, batches[replica::replicas], loss)
        weights = {name: weight.clone() for name, weight in model.shard.full_weights()}
        return found, weights, model.engine.state_dict()["step"], sums

    saved = on_ranks(grids[0].size, save)
    ranks = on_ranks(grids[1].size, go_on)

    alone = make_torch(setup_of(folder))
    expected = [step(alone, batches, loss) for _ in range(2)][-1]
    assert digest(saved) == digest([sums for *_, sums in ranks])
    for found, weights, steps, _ in ranks:
        assert_alike(found, expected)
        assert_alike(weights, dict(alone.weights()))
        assert steps == 2


def boxes(rows: int, columns: int) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    def part(size: int) -> st.SearchStrategy[tuple[int, int]]:
        ends = st.tuples(st.integers(0, size - 1), st.integers(1, size))
        return ends.filter(lambda pair: pair[0] < pair[1])

    return st.tuples(part(rows), part(columns))


@given(
    cuts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=4),
    wanted=boxes(6, 5),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_cut_of_a_tensor_gives_the_items_of_any_other(
    cuts: list[tuple[int, int]], wanted: tuple[tuple[int, int], ...], data: st.DataObject
) -> None:
    whole = torch.arange(30.0).view(6, 5)
    row, column = cuts[0]
    saved = [
        ((0, row), (0, 5)),
        ((row, 6), (0, column)),
        ((row, 6), (column, 5)),
    ]
    states = []
    for box in saved:
        (top, bottom), (left, right) = box
        items = whole[top:bottom, left:right].reshape(-1)
        middle = data.draw(st.integers(0, len(items)))
        for first, last in ((0, middle), (middle, len(items))):
            place = StateSegment("exp_avg", "weight", box, first, 0, last - first)
            states.append(({"a": items[first:last]}, {"a": [place]}))
    (top, bottom), (left, right) = wanted
    size = (bottom - top) * (right - left)
    first = data.draw(st.integers(0, size - 1))
    last = data.draw(st.integers(first + 1, size))
    asked = StateRange(kind="exp_avg", shape=(last - first,), parameters=("p",), first=first)

    places = state_segments(asked, {"p": [WeightSpan("weight", wanted)]})
    found = SavedStates(states).fill(asked, places)

    assert found.equal(whole[top:bottom, left:right].reshape(-1)[first:last])


def test_what_no_rank_saved_is_named() -> None:
    asked = StateRange(kind="main", shape=(4,), parameters=("model.norm.weight",))
    box = ((0, 2),)
    states = [
        ({"a": torch.zeros(2)}, {"a": [StateSegment("main", "model.norm.weight", box, 0, 0, 2)]})
    ]
    places = state_segments(
        asked, {"model.norm.weight": [WeightSpan("model.norm.weight", ((0, 4),))]}
    )

    with pytest.raises(CheckpointError, match=r"have 2 of 4 items of main of model\.norm\.weight"):
        SavedStates(states).fill(asked, places)
