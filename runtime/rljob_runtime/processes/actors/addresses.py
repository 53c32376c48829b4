"""Where the dock's warehouses are now: on a cluster one may come back in another pod after it died.

Given to every client and controller of a run. Ray restarts the actor and knows its node; the dock itself
knows nothing of Ray and asks at each connection. Without Ray all are on one machine and stay there.
"""

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.dock.address import DockAddress

FRESH_SECONDS = 1.0
ANSWER_SECONDS = 2.0
UNKNOWN = ("", 0)
"""In place of the address of a warehouse that nobody has asked yet."""


def own_host() -> str:
    """Where other processes of the run reach this worker."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "127.0.0.1"
    return str(ray.util.get_node_ip_address())


def warehouse_name(index: int) -> str:
    """A warehouse's name as a Ray actor of the run's namespace."""
    return f"warehouse-{index}"


@dataclass(slots=True)
class Warehouses:
    """Where each of the run's warehouses was last. They are found by name: an actor that is made from
    handles of others cannot be started again once Ray's object store has lost its arguments. may_move: one
    that is started again may have another address."""

    last: list[tuple[str, int]]
    may_move: bool = True
    asked: list[float] = field(default_factory=list)

    def where(self, index: int) -> tuple[str, int]:
        """Address of a warehouse; the last known one while it does not answer. Asks once a second at most."""
        if not self.may_move:
            return self.last[index]
        self.asked = self.asked or [time.monotonic()] * len(self.last)
        unknown = self.last[index] == UNKNOWN
        if unknown or time.monotonic() - self.asked[index] > FRESH_SECONDS:
            import ray

            try:
                answer = ray.get_actor(warehouse_name(index)).address.remote()
                self.last[index] = ray.get(answer, timeout=ANSWER_SECONDS)
            except (ray.exceptions.RayError, TimeoutError, ValueError):
                pass  # being restarted, or dead for good
            self.asked[index] = time.monotonic()
        return self.last[index]


@dataclass(slots=True)
class LiveAddress:
    """The dock's address at the moment of each call. dock: as it was when the run began."""

    dock: dict[str, Any] = field(repr=False)
    warehouses: Warehouses

    @property
    def first(self) -> DockAddress:
        """As it was when the run began; asks nobody."""
        return DockAddress.from_json(self.dock)

    def __call__(self) -> DockAddress:
        places = [list(self.warehouses.where(i)) for i in range(len(self.warehouses.last))]
        return DockAddress.from_json({**self.dock, "warehouses": places})
