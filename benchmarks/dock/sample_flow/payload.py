"""The samples that every side moves: six columns, dense or ragged, the same bytes in each process.

Lengths are even, so that the bytes of any part are whole 64-bit words and their sum does not depend
on how the rows were cut. Needs numpy alone: it runs in every side's environment.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

IDS = ("prompt_ids", "response_ids", "mask")
"""What the two states that infer read; the update reads all."""
LOGS = ("old_logprobs", "ref_logprobs", "advantages")
COLUMNS = (*IDS, *LOGS)
READERS: dict[str, tuple[str, ...]] = {"reference": IDS, "reward": IDS, "update": COLUMNS}
WORD = (1 << 64) - 1
LEAST_LENGTH = 16
SIGMA = 0.6
"""Of the logarithm of ragged lengths; their median is 0.45 of the longest."""


@dataclass(frozen=True, slots=True)
class Column:
    """values: of all rows, one after the other. lengths: int64, of each row."""

    values: Array
    lengths: NDArray[np.int64]

    def rows(self, start: int, stop: int) -> "Column":
        """These rows, a view."""
        first = int(self.lengths[:start].sum())
        size = int(self.lengths[start:stop].sum())
        return Column(self.values[first : first + size], self.lengths[start:stop])

    def each(self) -> Iterator[Array]:
        """The values of every row, views."""
        place = 0
        for length in self.lengths.tolist():
            yield self.values[place : place + length]
            place += length


@dataclass(frozen=True, slots=True)
class Payload:
    """Rows of up to max_length tokens, a quarter of them the prompt's; ragged ones are log-normal."""

    num_rows: int
    max_length: int
    ragged: bool = False

    @property
    def name(self) -> str:
        """As it stands in the tables."""
        length = f"{self.max_length // 1024}K" if self.max_length >= 1024 else self.max_length
        return f"{self.num_rows} × {length}{' ragged' if self.ragged else ''}"

    def make(self) -> dict[str, Column]:
        """The columns, always the same."""
        draw = np.random.default_rng(self.num_rows + self.max_length)
        prompts = self._lengths(draw, self.max_length // 4)
        responses = self._lengths(draw, self.max_length - self.max_length // 4)
        of = {"prompt_ids": prompts, "mask": prompts + responses}
        columns = {}
        for name in COLUMNS:
            lengths = of.get(name, responses)
            size = int(lengths.sum())
            values = (
                draw.integers(0, 2 if name == "mask" else 150_000, size)
                if name in IDS
                else draw.standard_normal(size, dtype=np.float32)
            )
            columns[name] = Column(values, lengths)
        return columns

    def _lengths(self, draw: np.random.Generator, longest: int) -> NDArray[np.int64]:
        if not self.ragged:
            return np.full(self.num_rows, longest, dtype=np.int64)
        lengths = draw.lognormal(np.log(0.45 * longest), SIGMA, self.num_rows)
        return np.clip(lengths, LEAST_LENGTH, longest).astype(np.int64) // 2 * 2


def sum_of_words(arrays: Iterable[Array]) -> int:
    """The sum of all bytes as 64-bit words, which looks at every one of them."""
    words = (np.add.reduce(array.reshape(-1).view(np.int64), axis=None) for array in arrays)
    return sum(int(word) for word in words) & WORD


def num_bytes(columns: dict[str, Column], names: Sequence[str]) -> int:
    """Of the values of some columns."""
    return sum(columns[name].values.nbytes for name in names)
