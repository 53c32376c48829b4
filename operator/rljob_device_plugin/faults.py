"""Which chips are marked as broken: files of chip numbers in a folder, such as a mounted ConfigMap.

Called by `registration` once a second. The file `unhealthy` holds for every node, a file named after a
node for that one; an absent file marks nothing.
"""

import logging
from pathlib import Path

from rljob_device_plugin.chips import numbers
from rljob_device_plugin.errors import UnknownChip

logger = logging.getLogger(__name__)

EVERY_NODE = "unhealthy"


class Faults:
    """The marks on one node's chips."""

    def __init__(self, folder: Path | None, *, node: str, count: int) -> None:
        self._files = [] if folder is None else [folder / EVERY_NODE, folder / node]
        self._count = count
        self._marked: frozenset[int] = frozenset()
        self._problem = ""

    def read(self) -> frozenset[int]:
        """Chips that are marked now; what was read last while a file is wrong, which is logged once."""
        try:
            marked = frozenset(chip for file in self._files for chip in self._read(file))
        except (OSError, UnknownChip) as error:
            if str(error) != self._problem:
                logger.error("faults not read, marks stay as they were: %s", error)
            self._problem = str(error)
            return self._marked
        if marked != self._marked:
            logger.warning("unhealthy_chips=%s", sorted(marked))
        self._marked, self._problem = marked, ""
        return marked

    def _read(self, file: Path) -> list[int]:
        try:
            text = file.read_text(errors="replace")
        except FileNotFoundError:
            return []
        try:
            return numbers(text.replace(",", " ").split(), count=self._count)
        except UnknownChip as error:
            raise UnknownChip(f"{file}: {error}") from error
