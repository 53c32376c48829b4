"""The asyncio client does what the client does, and never blocks the event loop."""

import asyncio

import numpy as np
import pytest

from rljob_runtime.dock.aio import AsyncDockClient
from rljob_runtime.errors import DockTimeout


@pytest.fixture
def dock(make_dock):
    return make_dock(warehouses=2)


async def test_rows_pass_all_states_through_concurrent_workers(
    dock, rows_of, responses_of, rewards_of
) -> None:
    async def work(state: str, columns_of) -> None:
        async with AsyncDockClient(dock.address, state=state, owner=state) as client:
            async for claim in client.claims("b", limit=3, timeout_seconds=10):
                await client.read(claim.rows, ["prompt"])
                await client.write(claim.rows, columns_of(claim.rows), version=1)

    async def train() -> int:
        async with AsyncDockClient(dock.address, state="update", owner="update") as client:
            claim = await client.claim("b", share=(0, 1), timeout_seconds=10)
            async with client.view(claim.rows, ["response"]) as columns:
                tokens = int(columns["response"].values.sum())
            await client.acknowledge(claim.rows)
            assert (await client.stats()).rows == 0
            return tokens

    async with AsyncDockClient(dock.address, state="feed", owner="feeder") as feeder:
        workers = [work("generate", responses_of), work("reward", rewards_of), train()]
        running = asyncio.gather(*workers)
        assert await feeder.put_rows("b", rows_of("b", groups=6, samples=2), total=12) == 12
        *_, tokens = await running

    assert tokens == 4 * (1 + 2 + 3)  # four claims of three rows


async def test_the_loop_runs_while_a_claim_waits(dock) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    async with AsyncDockClient(dock.address, state="generate", owner="w") as client:
        with pytest.raises(DockTimeout, match="no row of it was put"):
            await client.claim("b", timeout_seconds=0.3)
    ticking.cancel()

    assert ticks > 5


async def test_rows_of_a_cancelled_claim_go_back(dock, rows_of) -> None:
    async with (
        AsyncDockClient(dock.address, state="generate", owner="first") as first,
        AsyncDockClient(dock.address, state="generate", owner="second") as second,
    ):
        waiting = asyncio.create_task(first.claim("b", timeout_seconds=10))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        await second.put_rows("b", rows_of("b", groups=1, samples=2), total=2)
        claim = await second.claim("b", timeout_seconds=10)

    assert {row.sample for row in claim.rows} == {0, 1}


async def test_an_error_inside_a_view_is_the_callers_own(dock, rows_of) -> None:
    async with AsyncDockClient(dock.address, state="generate", owner="w") as client:
        await client.put_rows("b", rows_of("b", groups=1, samples=1), total=1)
        claim = await client.claim("b", timeout_seconds=10)

        with pytest.raises(ZeroDivisionError):
            async with client.view(claim.rows, ["prompt"]) as columns:
                assert columns["prompt"].row(0).dtype == np.int32
                _ = 1 / 0
