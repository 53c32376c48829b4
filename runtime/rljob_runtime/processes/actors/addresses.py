"""Look up the current addresses of the dock's servers: on a cluster a server that died may restart in
another pod.

Every client and controller of a run has these addresses. Ray restarts the actor and knows its node. The
dock itself does not depend on Ray and looks the address up at each connection. Without Ray all servers
stay on one machine.
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
"""Placeholder for the address of a server that has not been requested yet."""


def worker_host() -> str:
    """Return the address at which other processes of the run reach this worker."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "127.0.0.1"
    return str(ray.util.get_node_ip_address())


def warehouse_name(index: int) -> str:
    """Return a warehouse's name as a Ray actor in the run's namespace."""
    return f"warehouse-{index}"


def controller_name(state: str) -> str:
    """Return a controller's name as a Ray actor in the run's namespace."""
    return f"controller-{state}"


@dataclass(slots=True)
class ServerAddresses:
    """The latest known address of each server, by the server's name.

    Servers are looked up by name: an actor created from handles of other actors cannot restart after
    Ray's object store has lost its arguments. may_move: whether a restarted server may have another
    address.
    """

    latest: dict[str, tuple[str, int]]
    may_move: bool = True
    requested_at: dict[str, float] = field(default_factory=dict)

    def address_of(self, name: str) -> tuple[str, int]:
        """Return a server's address, or the last known one while the server does not answer."""
        self.refresh([name])
        return self.latest[name]

    def refresh(self, names: Iterable[str]) -> None:
        """Request the current addresses of these servers, each at most once a second."""
        monotonic_s = time.monotonic()
        stale = [
            name
            for name in names
            if self.latest[name] == UNKNOWN
            or monotonic_s - self.requested_at.setdefault(name, monotonic_s) > FRESH_SECONDS
        ]
        if self.may_move and stale:
            self.latest |= _request_addresses(stale)
            self.requested_at |= dict.fromkeys(stale, time.monotonic())


def _request_addresses(names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Request the addresses of these actors. Actors that are restarting or permanently dead are
    omitted."""
    import ray

    requests = {}
    for name in names:
        with contextlib.suppress(ValueError):
            requests[ray.get_actor(name).address.remote()] = name
    ended, _ = (
        ray.wait([*requests], num_returns=len(requests), timeout=ANSWER_SECONDS)
        if requests
        else ([], 0)
    )
    addresses = {}
    for request in ended:
        with contextlib.suppress(ray.exceptions.RayError):
            addresses[requests[request]] = ray.get(request, timeout=ANSWER_SECONDS)
    return addresses


@dataclass(slots=True)
class LiveAddress:
    """The dock's address at the time of each call. dock: the address at the start of the run. servers:
    addresses of all its servers."""

    dock: dict[str, Any] = field(repr=False)
    servers: ServerAddresses

    @classmethod
    def of(cls, dock: DockAddress, *, may_move: bool) -> "LiveAddress":
        """Create it from the dock's address at the start of the run."""
        addresses = {warehouse_name(i): address for i, address in enumerate(dock.warehouses)}
        addresses |= {
            controller_name(state): address for state, address in dock.controllers.items()
        }
        return cls(dock.to_json(), ServerAddresses(addresses, may_move))

    @property
    def first(self) -> DockAddress:
        """Return the address at the start of the run, without any request."""
        return DockAddress.from_json(self.dock)

    def __call__(self) -> DockAddress:
        first, latest = self.first, self.servers.latest
        self.servers.refresh(latest)
        return replace(
            first,
            warehouses=tuple(latest[warehouse_name(i)] for i in range(len(first.warehouses))),
            controllers={state: latest[controller_name(state)] for state in first.controllers},
        )
