"""Settings that are chosen when the device plugin is started. `main` reads them once from the command
line."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Settings of one device plugin.

    folder: where the kubelet's socket is and the plugin's will be. faults: the folder of marks, or None.
    reports: the namespace that they are reported in, or None. node: the node whose marks count.
    deadline_seconds: of the first registration. poll_seconds: interval between checks of the sockets and
    marks.
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
        """Return the socket at which plugins register."""
        return self.folder / "kubelet.sock"

    @property
    def own_socket(self) -> Path:
        """Return the plugin's socket: one per resource, so that plugins of several resources can run on one
        node."""
        return self.folder / f"rljob-{self.resource.replace('/', '-')}.sock"
