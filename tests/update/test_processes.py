"""Ranks that are processes, with the group that device workers have."""

import torch
import torch.distributed as dist
from forked_ranks import on_ranks

OPTIMIZER = {"learning_rate": 1e-2, "epsilon": 1e-3}


def test_two_processes_end_with_the_weights_of_one_rank_and_with_equal_bits(both):
    bench = both[0]
    batches = [bench.make_batch(4, 4, seed=seed) for seed in range(2)]

    def train(rank):
        engine = bench.make_engine(bench.make_model(), dist.group.WORLD, **OPTIMIZER)
        for batch in batches:
            share = batch.select(range(rank, 16, 2))
            engine.train([share], bench.make_loss(), groups_with_signal=1)
        return dict(engine.weights())

    first, second = on_ranks(2, train)

    alone = bench.make_engine(bench.make_model(), **OPTIMIZER)
    for batch in batches:
        alone.train([batch], bench.make_loss(), groups_with_signal=1)
    assert all(first[name].equal(second[name]) for name in first)
    torch.testing.assert_close(first, dict(alone.weights()), atol=1e-5, rtol=0)
