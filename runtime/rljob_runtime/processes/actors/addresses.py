"""Where the dock's servers are now: on a cluster one may come back in another pod after it died.

Given to every client and controller of a run. Ray restarts the actor and knows its node; the dock itself
knows nothing of Ray and asks at each connection. Without Ray all are on one machine and stay there.
"""

import contextlib
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rljob_runtime.dock.address import DockAddress

FRESH_SECONDS = 1.0
ANSWER_SECONDS = 2.0
UNKNOWN = ("", 0)
"""In place of the address of a server that nobody has asked yet."""


def own_host() -> str:
    """Where other processes of the run reach this worker."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "127.0.0.1"
    return str(ray.util.get_node_ip_address())


def warehouse_name(index: int) -> str:
    """A warehouse's name as a Ray actor of the run's namespace."""
    return f"warehouse-{index}"


def controller_name(state: str) -> str:
    """A controller's name, likewise."""
    return f"controller-{state}"


@dataclass(slots=True)
class Servers:
    """Where each of these servers was last, by its name. They are found by it: an actor that is made from
    handles of others cannot be started again once Ray's object store has lost its arguments. may_move: one
    that is started again may have another address."""

    last: dict[str, tuple[str, int]]
    may_move: bool = True
    asked: dict[str, float] = field(default_factory=dict)

    def where(self, name: str) -> tuple[str, int]:
        """Address of one; the last known one while it does not answer."""
        self.ask([name])
        return self.last[name]

    def ask(self, names: Iterable[str]) -> None:
        """Learn where these are now, each once a second at most."""
        now = time.monotonic()
        old = [
            name
            for name in names
            if self.last[name] == UNKNOWN or now - self.asked.setdefault(name, now) > FRESH_SECONDS
        ]
        if self.may_move and old:
            self.last |= _answers(old)
            self.asked |= dict.fromkeys(old, time.monotonic())


def _answers(names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Of actors with these names; without those that are just being started again, or dead for good."""
    import ray

    asked = {}
    for name in names:
        with contextlib.suppress(ValueError):
            asked[ray.get_actor(name).address.remote()] = name
    ended, _ = (
        ray.wait([*asked], num_returns=len(asked), timeout=ANSWER_SECONDS) if asked else ([], 0)
    )
    found = {}
    for answer in ended:
        with contextlib.suppress(ray.exceptions.RayError):
            found[asked[answer]] = ray.get(answer, timeout=ANSWER_SECONDS)
    return found


@dataclass(slots=True)
class LiveAddress:
    """The dock's address at the moment of each call. dock: as it was when the run began. servers: all of
    its."""

    dock: dict[str, Any] = field(repr=False)
    servers: Servers

    @classmethod
    def of(cls, dock: DockAddress, *, may_move: bool) -> "LiveAddress":
        """From its address as the run begins."""
        last = {warehouse_name(i): place for i, place in enumerate(dock.warehouses)}
        last |= {controller_name(state): place for state, place in dock.controllers.items()}
        return cls(dock.to_json(), Servers(last, may_move))

    @property
    def first(self) -> DockAddress:
        """As it was when the run began; asks nobody."""
        return DockAddress.from_json(self.dock)

    def __call__(self) -> DockAddress:
        first, last = self.first, self.servers.last
        self.servers.ask(last)
        return replace(
            first,
            warehouses=tuple(last[warehouse_name(i)] for i in range(len(first.warehouses))),
            controllers={state: last[controller_name(state)] for state in first.controllers},
        )
