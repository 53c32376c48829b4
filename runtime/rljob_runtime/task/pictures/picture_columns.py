"""Convert pictures of a prompt to dock columns: 8 bits per value, eight times fewer bytes than patches.

The prompt feeder writes them once per group. The states that show pictures to a model read them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.samples.flow import PICTURE_COLUMNS
from rljob_runtime.task.pictures.picture import Pixels
from rljob_runtime.task.pictures.processor import PictureProcessor

if TYPE_CHECKING:
    from rljob_runtime.samples.pictures import Picture

PIXELS, SIZES = PICTURE_COLUMNS
Columns = Mapping[str, NDArray[Any]]


def picture_columns(scaled: Sequence[Pixels]) -> dict[str, NDArray[Any]]:
    """Return the columns of a prompt's pictures, if any. scaled: pictures in the model's size,
    [height, width, 3]."""
    sizes = [pixels.shape[:2] for pixels in scaled]
    values = [pixels.reshape(-1) for pixels in scaled]
    return {
        PIXELS: np.concatenate(values) if values else np.zeros(0, dtype=np.uint8),
        SIZES: np.asarray(sizes, dtype=np.int32).reshape(-1),
    }


def pixels_in(columns: Columns) -> list[Pixels]:
    """Return views of the pictures of one prompt that `picture_columns` has stored."""
    pixels, start = list[Pixels](), 0
    for height, width in columns[SIZES].reshape(-1, 2).tolist():
        end = start + 3 * height * width
        pixels.append(columns[PIXELS][start:end].reshape(height, width, 3))
        start = end
    return pixels


@dataclass(frozen=True, slots=True)
class PictureReader:
    """Reads the pictures of rows in the dock for a model. processor: that of the model."""

    processor: PictureProcessor

    def read(self, dock: DockClient, rows: Sequence[RowMeta]) -> "dict[str, list[Picture]]":
        """Return the pictures of each group among these rows, in order; each is transferred and
        processed once."""
        shown = self.columns(dock, rows)
        return {group: self.make_pictures(columns) for group, columns in shown.items()}

    def columns(self, dock: DockClient, rows: Sequence[RowMeta]) -> dict[str, Columns]:
        """Return the picture columns of each group among these rows."""
        firsts = list({row.group: row for row in reversed(rows)}.values())[::-1]
        columns = dock.read(firsts, PICTURE_COLUMNS) if firsts else {}
        return {
            row.group: {name: columns[name].row(i) for name in PICTURE_COLUMNS}
            for i, row in enumerate(firsts)
        }

    def make_pictures(self, columns: Columns) -> "list[Picture]":
        """Return the pictures in these columns of a group.

        Each picture's name is derived from its pixels and not from its batch or pool: groups move, and a
        repeated step may have other prompts at the same positions.
        """
        return [self.processor.picture(pixels, _name(pixels)) for pixels in pixels_in(columns)]


def _name(pixels: Pixels) -> str:
    digest = blake2b(str(pixels.shape).encode(), digest_size=16)
    digest.update(pixels.data)
    return digest.hexdigest()
