"""A hundred steps leave nothing behind: no bytes, no holes, no rows, no leases."""

import numpy as np
import pytest

from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import NewRow

STEPS, GROUPS, SAMPLES = 100, 3, 2


def ragged_rows(rng: np.random.Generator, step: int) -> list[NewRow]:
    return [
        NewRow(
            uid=f"{step}/{g}/{s}",
            group=f"{step}/{g}",
            group_index=g,
            group_columns={"prompt": np.arange(rng.integers(0, 90), dtype=np.int32)},
            reserve_bytes=int(rng.integers(0, 900)),
        )
        for g in range(GROUPS)
        for s in range(SAMPLES)
    ]


def ragged(rng: np.random.Generator, num_rows: int, dtype: str) -> Ragged:
    lengths = rng.integers(0, 300, num_rows)
    return Ragged.from_rows([np.ones(length, dtype=dtype) for length in lengths])


@pytest.mark.parametrize("shared_memory", ["required", "none"])
def test_a_hundred_ragged_steps_leave_the_dock_as_it_was(make_dock, shared_memory: str) -> None:
    rng = np.random.default_rng(3)
    dock = make_dock(warehouses=2, capacity=60_000, shared_memory=shared_memory)
    names = ("feed", "generate", "reward", "update")
    feeder, generate, reward, update = (dock.client(name) for name in names)
    warehouses = [thread.server.store for thread in dock.threads[:2]]
    ledgers = [thread.server.ledger for thread in dock.threads[2:]]
    before = [(store.charged_bytes, store.slabs.arena.holes()) for store in warehouses]

    for step in range(STEPS):
        name = str(step)
        feeder.put_rows(name, ragged_rows(rng, step), total=GROUPS * SAMPLES)
        while not (claim := generate.claim(name, limit=4, timeout_seconds=10)).done:
            columns = {
                "response": ragged(rng, len(claim.rows), "int32"),
                "logprobs": ragged(rng, len(claim.rows), "float32"),
            }
            generate.write(claim.rows, columns)
        while not (claim := reward.claim(name, limit=5, timeout_seconds=10)).done:
            reward.read(claim.rows, ["response", "prompt"])
            reward.write(claim.rows, {"reward": ragged(rng, len(claim.rows), "float32")})
        claim = update.claim(name, share=(0, 1), timeout_seconds=10)
        with update.view(claim.rows, ["response", "logprobs", "reward"]) as columns:
            assert len(columns["reward"]) == GROUPS * SAMPLES
        update.acknowledge(claim.rows)

    feeder.assert_empty()
    assert [(s.charged_bytes, s.slabs.arena.holes()) for s in warehouses] == before
    assert all(not store.num_rows and not store.slabs.retained_bytes for store in warehouses)
    assert all(not ledger.num_rows and not ledger.leases for ledger in ledgers)
    assert all(store.peak_bytes > 0 for store in warehouses)
