"""The address of a job's dock: everything that a client needs to reach it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DockAddress:
    """Addresses (host, port) of a dock's servers and the job's token.

    controllers: by state. shared_memory: auto, required or none, as spec.dock.sharedMemory. switchboard:
    where a run's processes answer when it hangs, None for a dock without a run. The token is a secret: it is
    in `to_json`, and not in `repr`.
    """

    token: str = field(repr=False)
    warehouses: tuple[tuple[str, int], ...]
    controllers: Mapping[str, tuple[str, int]]
    shared_memory: str = "auto"
    switchboard: tuple[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the address as JSON for another process."""
        return {
            "token": self.token,
            "warehouses": [list(address) for address in self.warehouses],
            "controllers": {state: list(address) for state, address in self.controllers.items()},
            "shared_memory": self.shared_memory,
            "switchboard": None if self.switchboard is None else list(self.switchboard),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "DockAddress":
        """Parse what `to_json` returned."""
        return cls(
            token=data["token"],
            warehouses=tuple((host, port) for host, port in data["warehouses"]),
            controllers={
                state: (host, port) for state, (host, port) in data["controllers"].items()
            },
            shared_memory=data["shared_memory"],
            switchboard=tuple(data["switchboard"]) if data.get("switchboard") else None,
        )

    def server(self, role: str) -> tuple[str, int]:
        """Return the address of "warehouse/0", "controller/reward" or "switchboard"."""
        kind, _, name = role.partition("/")
        if kind == "switchboard":
            assert self.switchboard is not None, "a dock on its own has no switchboard"
            return self.switchboard
        return self.warehouses[int(name)] if kind == "warehouse" else self.controllers[name]
