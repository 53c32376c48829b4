"""The seeded permutation of training items."""

import itertools

import pytest

from rljob_runtime.prompts.order import permute


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100, 1000])
def test_every_item_comes_once(size: int) -> None:
    order = [permute(i, size=size, seed=5) for i in range(size)]

    assert sorted(order) == list(range(size))


def test_seeds_give_different_orders() -> None:
    first, second = ([permute(i, size=500, seed=seed) for i in range(500)] for seed in (1, 2))

    same_place = sum(a == b for a, b in zip(first, second, strict=True))
    neighbours = sum(abs(a - b) == 1 for a, b in itertools.pairwise(first))
    assert same_place < 10
    assert neighbours < 10


def test_a_hundred_million_items_need_no_list() -> None:
    places = {permute(i, size=100_000_000, seed=0) for i in range(200)}

    assert len(places) == 200
    assert max(places) < 100_000_000
    assert max(places) > 90_000_000
