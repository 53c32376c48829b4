"""Pictures of a prompt as the dock keeps them: 8 bits a value, eight times fewer bytes than patches.

Written by the prompt feeder once a group, and read by the states that show them to a model.
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
    """Of a prompt, which may show none. scaled: as the model sees them, [height, width, 3]."""
    sizes = [pixels.shape[:2] for pixels in scaled]
    values = [pixels.reshape(-1) for pixels in scaled]
    return {
        PIXELS: np.concatenate(values) if values else np.zeros(0, dtype=np.uint8),
        SIZES: np.asarray(sizes, dtype=np.int32).reshape(-1),
    }


def pixels_in(columns: Columns) -> list[Pixels]:
    """What `picture_columns` was given of one prompt, views."""
    found, place = list[Pixels](), 0
    for height, width in columns[SIZES].reshape(-1, 2).tolist():
        end = place + 3 * height * width
        found.append(columns[PIXELS][place:end].reshape(height, width, 3))
        place = end
    return found


@dataclass(frozen=True, slots=True)
class PictureReader:
    """What a model is shown of rows of the dock. processor: the model's."""

    processor: PictureProcessor

    def read(self, dock: DockClient, rows: Sequence[RowMeta]) -> "dict[str, list[Picture]]":
        """The pictures of each group among these rows, in order; each is moved and made once."""
        shown = self.columns(dock, rows)
        return {group: self.made(columns) for group, columns in shown.items()}

    def columns(self, dock: DockClient, rows: Sequence[RowMeta]) -> dict[str, Columns]:
        """The columns of each group among these rows."""
        firsts = list({row.group: row for row in reversed(rows)}.values())[::-1]
        found = dock.read(firsts, PICTURE_COLUMNS) if firsts else {}
        return {
            row.group: {name: found[name].row(i) for name in PICTURE_COLUMNS}
            for i, row in enumerate(firsts)
        }

    def made(self, columns: Columns) -> "list[Picture]":
        """Those that these columns of a group hold. Each has its pixels' name, whatever batch or pool it is
        in: groups move, and a step that starts over may have other prompts in their places."""
        return [self.processor.picture(pixels, _name(pixels)) for pixels in pixels_in(columns)]


def _name(pixels: Pixels) -> str:
    found = blake2b(str(pixels.shape).encode(), digest_size=16)
    found.update(pixels.data)
    return found.hexdigest()
