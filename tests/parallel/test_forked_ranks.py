"""The ranks that the tests of parallel code run on: results, failures and deadlines."""

import multiprocessing
import os
import time

import pytest
import torch
import torch.distributed as dist
from forked_ranks import RanksFailed, on_ranks


def test_ranks_meet_and_their_results_come_back_in_order() -> None:
    offset = 10

    def add_up(rank: int) -> torch.Tensor:
        total = torch.tensor([rank + offset])
        dist.all_reduce(total)
        return torch.cat([torch.tensor([rank]), total])

    results = on_ranks(3, add_up)

    assert [result.tolist() for result in results] == [[0, 33], [1, 33], [2, 33]]
    assert not multiprocessing.active_children()


def test_every_failed_rank_is_shown_whole() -> None:
    def fail(rank: int) -> None:
        if rank != 1:
            raise ValueError(f"wrong on {rank}")

    with pytest.raises(RanksFailed) as caught:
        on_ranks(3, fail)

    assert caught.value.reasons.keys() == {0, 2}
    assert "ValueError: wrong on 0" in str(caught.value)
    assert "ValueError: wrong on 2" in str(caught.value)


def test_a_rank_that_waits_for_a_failed_one_does_not_use_up_the_deadline() -> None:
    def wait_for_rank_0(rank: int) -> None:
        if rank == 0:
            raise ValueError("gone")
        dist.barrier()

    began = time.monotonic()
    with pytest.raises(RanksFailed, match="ValueError: gone"):
        on_ranks(2, wait_for_rank_0)

    assert time.monotonic() - began < 20


def test_a_rank_that_dies_is_named_with_its_exit_code() -> None:
    def die(rank: int) -> None:
        if rank == 1:
            os._exit(7)

    with pytest.raises(RanksFailed, match="rank 1: died without a word, exit code 7"):
        on_ranks(2, die)


def test_the_deadline_says_where_each_rank_stands_and_leaves_no_process() -> None:
    def hang(rank: int) -> None:
        if rank == 1:
            time.sleep(3600)

    with pytest.raises(RanksFailed) as caught:
        on_ranks(2, hang, seconds=3.0)

    assert "deadline 3 s" in str(caught.value)
    assert caught.value.reasons.keys() == {1}
    assert "no result yet" in caught.value.reasons[1] and "in hang" in caught.value.reasons[1]
    assert not multiprocessing.active_children()
