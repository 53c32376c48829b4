"""Ranks that are processes, with the group that device workers have."""

import subprocess
import sys
from pathlib import Path

import torch

OPTIMIZER = {"learning_rate": 1e-2, "epsilon": 1e-3}


def test_two_processes_end_with_the_weights_of_one_rank_and_with_equal_bits(both, tmp_path):
    bench = both[0]
    batches = [bench.make_batch(4, 4, seed=seed) for seed in range(2)]
    steps = [[batch.select(range(rank, 16, 2)) for rank in range(2)] for batch in batches]
    work = {"model": bench.make_model(), "optimizer": OPTIMIZER, "steps": steps}
    torch.save(work, tmp_path / "work.pt")
    engine = bench.make_engine(work["model"], **OPTIMIZER)
    for batch in batches:
        engine.train([batch], bench.make_loss(), groups_with_signal=1)

    script = str(Path(__file__).with_name("rank_process.py"))
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), str(tmp_path)]) for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()

    first, second = (torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(2))
    assert all(first[name].equal(second[name]) for name in first)
    torch.testing.assert_close(first, dict(engine.weights()), atol=1e-5, rtol=0)
