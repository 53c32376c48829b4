"""Read which chips are marked as faulty: files of marks in a folder, such as a mounted ConfigMap.

Called by `registration` once a second. The file `unhealthy` applies to every node, a file named after a node
to that node; an absent file marks nothing. A mark is CHIP, or CHIP:LEVEL with a level of MindCluster's.
"""

import logging
from pathlib import Path

from rljob_device_plugin.chips import numbers
from rljob_device_plugin.errors import UnknownChip, UnknownLevel

logger = logging.getLogger(__name__)

EVERY_NODE = "unhealthy"
USUAL = "SeparateNPU"
ALLOCATED = ("NotHandleFault", "SubHealthFault")
"""Levels at which the kubelet still allocates a chip to pods."""
LEVELS = (
    *ALLOCATED,
    "PreSeparateNPU",
    "RestartRequest",
    "RestartBusiness",
    "FreeRestartNPU",
    "RestartNPU",
    USUAL,
    "ManuallySeparateNPU",
)
Marks = dict[int, str]
"""The levels of marked chips, by chip."""


class Faults:
    """The marks on one node's chips."""

    def __init__(self, folder: Path | None, *, node: str, count: int) -> None:
        self._files = [] if folder is None else [folder / EVERY_NODE, folder / node]
        self._count = count
        self._marks: Marks = {}
        self._problem = ""

    def read(self) -> Marks:
        """Return the current marks. While a file is wrong, which is logged once, return the marks that were
        read last."""
        try:
            marks = {chip: level for file in self._files for chip, level in self._read(file)}
        except (OSError, UnknownChip, UnknownLevel) as error:
            if str(error) != self._problem:
                logger.error("faults not read, marks stay as they were: %s", error)
            self._problem = str(error)
            return self._marks
        if marks != self._marks:
            logger.warning("faulty_chips=%s", marks)
        self._marks, self._problem = marks, ""
        return marks

    def _read(self, file: Path) -> list[tuple[int, str]]:
        try:
            text = file.read_text(errors="replace")
        except FileNotFoundError:
            return []
        marks = [mark.partition(":") for mark in text.replace(",", " ").split()]
        try:
            return [(self._chip(chip), _level(level)) for chip, _, level in marks]
        except (UnknownChip, UnknownLevel) as error:
            raise type(error)(f"{file}: {error}") from error

    def _chip(self, name: str) -> int:
        (chip,) = numbers([name], count=self._count)
        return chip


def unhealthy(marks: Marks) -> frozenset[int]:
    """Return the chips that the kubelet must not allocate."""
    return frozenset(chip for chip, level in marks.items() if level not in ALLOCATED)


def _level(name: str) -> str:
    if name and name not in LEVELS:
        raise UnknownLevel(f"no level {name}: use {', '.join(LEVELS)}")
    return name or USUAL
