"""What whoever starts the device plugin decides. `main` reads it once from the command line."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one device plugin.

    folder: where the kubelet's socket is and the plugin's will be. faults: the folder of marks, or none.
    reports: the namespace that they are reported in, or none.
    node: whose marks count. deadline_seconds: of the first registration. poll_seconds: between two looks
    at the sockets and marks.
    """

    resource: str
    chips: int
    folder: Path
    node: str
    faults: Path | None
    reports: str | None = None
    deadline_seconds: float
    poll_seconds: float = 1.0

    @property
    def kubelet_socket(self) -> Path:
        """Where plugins register."""
        return self.folder / "kubelet.sock"

    @property
    def own_socket(self) -> Path:
        """One a resource, so that plugins of several resources live on one node."""
        return self.folder / f"rljob-{self.resource.replace('/', '-')}.sock"
