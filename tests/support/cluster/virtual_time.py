"""A clock that stands until a test moves it, for code that takes clock and sleep as arguments."""

import asyncio
import heapq
import itertools

ROUNDS = 50  # turns of the event loop within which everything that can run has run


async def settle() -> None:
    """Let every task run until it waits for time or for the test."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


class VirtualTime:
    """clock and sleep of one test. now: seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass; what sleeps wakes in order, each at its own time."""
        end = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                self.now = max(self.now, due)
                woken.set_result(None)
                await settle()
        self.now = end
        await settle()
