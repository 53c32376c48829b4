"""Which items of which weights an optimizer's state is of, so that ranks of another layout can take it.

A rank saves its state with its places, and one of another layout is filled from the files of all ranks, a
tensor at a time. Called by `worker.trained_model`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

from rljob_runtime.errors import CheckpointError
from rljob_runtime.update.moments import moment_in_float8, moment_values, scales_name

Box = tuple[tuple[int, int], ...]
"""[start, stop) of each dim of a whole tensor."""
MAIN = "main"
"""The kind of main weights; with ZeRO 3 a rank's weights are these, and its state has none."""
CHUNK_ITEMS = 2**22
"""Of slices that are cut otherwise, that are looked at at a time."""
REMEDY = "resume with the degrees of the checkpoint, or start a new job from its model"


@dataclass(frozen=True, slots=True)
class Span:
    """A weight's slice `box`, by Hugging Face name, whose items follow each other in a parameter."""

    name: str
    box: Box

    @property
    def count(self) -> int:
        """Items."""
        return prod(stop - start for start, stop in self.box)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRange:
    """What a tensor of a state is of: items from `first` on of `parameters`, one after the other. kind: such
    as `exp_avg`. No parameters: a number that all ranks have. in_float8: its scales are another tensor, of
    blocks of this one."""

    kind: str
    shape: tuple[int, ...]
    parameters: tuple[str, ...] = ()
    first: int = 0
    in_float8: bool = False

    def stored(self, name: str, values: Tensor) -> dict[str, Tensor]:
        """Values that `SavedStates.fill` gave as the state of that name has them; in 8 bits they are rounded,
        on all ranks with the same part alike."""
        return moment_in_float8(name, self.kind, values) if self.in_float8 else {name: values}


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Items [at, at + count) of a state's tensor are items from `first` on of a slice, row by row."""

    kind: str
    name: str
    box: Box
    first: int
    at: int
    count: int


def places_of(of: StateRange, spans: Mapping[str, Iterable[Span]]) -> Iterator[StatePlace]:
    """Of one tensor of a state. spans: of each parameter that the rank holds, in order."""
    size = prod(of.shape)
    if not of.parameters:
        yield StatePlace(of.kind, "", (), 0, 0, size)
        return
    begin = 0
    for span in (span for name in of.parameters for span in spans[name]):
        first, last = max(begin, of.first), min(begin + span.count, of.first + size)
        if first < last:
            at = first - of.first
            yield StatePlace(of.kind, span.name, span.box, first - begin, at, last - first)
        begin += span.count


def as_rows(places: Iterable[StatePlace]) -> list[tuple[object, ...]]:
    """As a file holds them."""
    return [astuple(place) for place in places]


def from_rows(rows: Iterable[Iterable[object]]) -> list[StatePlace]:
    """The inverse."""
    return [StatePlace(*row) for row in rows]  # type: ignore[arg-type]


def adamw_ranges(
    state: Mapping[str, Tensor], first: Mapping[str, int] | None = None
) -> dict[str, StateRange]:
    """Of a state of `AdamW`. first: the first item of each parameter that is there; not named: 0. Scales of
    moments in 8 bits go with these."""
    found: dict[str, StateRange] = {}
    for name, tensor in state.items():
        kind, _, parameter = name.partition(".")
        if kind.endswith("_scale"):
            continue
        found[name] = StateRange(
            kind=kind,
            shape=tensor.shape,
            parameters=(parameter,) if parameter else (),
            first=(first or {}).get(parameter, 0),
            in_float8=scales_name(name, kind) in state,
        )
    return found


class SavedStates:
    """States of all ranks of a layout. states: tensors by name, with the places of each."""

    def __init__(
        self, states: Iterable[tuple[Mapping[str, Tensor], Mapping[str, list[StatePlace]]]]
    ):
        self._found: dict[tuple[str, str], list[tuple[StatePlace, Callable[[], Tensor]]]]
        self._found = defaultdict(list)
        for tensors, places in states:
            for name, of_tensor in places.items():
                for place in of_tensor:
                    read = partial(moment_values, tensors, name, place.kind)
                    self._found[place.kind, place.name].append((place, read))

    @property
    def kinds(self) -> set[str]:
        """All that some rank saved."""
        return {kind for kind, _ in self._found}

    def add_whole(
        self, kind: str, name: str, shape: tuple[int, ...], read: Callable[[], Tensor]
    ) -> None:
        """A whole weight's tensor, from elsewhere than the ranks' files."""
        box = tuple((0, size) for size in shape)
        self._found[kind, name].append((StatePlace(kind, name, box, 0, 0, prod(shape)), read))

    def fill(self, of: StateRange, places: Iterable[StatePlace]) -> Tensor:
        """The values that a rank has there. Raises CheckpointError where nobody saved an item of it."""
        size = prod(of.shape)
        filled, seen = torch.zeros(0), torch.zeros(size, dtype=torch.bool)
        for place in places:
            for saved, read in self._found.get((place.kind, place.name), ()):
                items: Tensor | None = None
                for source, target in _meet(saved, place):
                    if items is None:
                        items = read().reshape(-1)[saved.at : saved.at + saved.count]
                    if len(filled) < size:
                        filled = torch.zeros(size, dtype=items.dtype)
                    filled[target], seen[target] = items[source], True
        if not seen.all():
            wanted = next(iter(of.parameters), of.kind)
            raise CheckpointError(
                f"the checkpoint's optimizers have {int(seen.sum())} of {len(seen)} items of {of.kind} of "
                f"{wanted}; {REMEDY}"
            )
        return filled.view(of.shape)


def _meet(saved: StatePlace, wanted: StatePlace) -> Iterator[tuple[Tensor | slice, Tensor | slice]]:
    """Places of the items that both have: in what was saved of it, and in the tensor that is filled."""
    if saved.box[1:] == wanted.box[1:]:  # rows of the same tensor follow each other in both
        width = prod(stop - start for start, stop in saved.box[1:])
        here, there = (
            place.first + width * (place.box[0][0] if place.box else 0) for place in (saved, wanted)
        )
        first, last = max(here, there), min(here + saved.count, there + wanted.count)
        if first < last:
            at = first - there + wanted.at
            yield slice(first - here, last - here), slice(at, at + last - first)
        return
    for first in range(0, saved.count, CHUNK_ITEMS):
        items = torch.arange(first, min(first + CHUNK_ITEMS, saved.count))
        into, both = _in_slice(items + saved.first, saved.box, wanted.box)
        both &= (into >= wanted.first) & (into < wanted.first + wanted.count)
        if both.any():
            yield items[both], into[both] - wanted.first + wanted.at


def _in_slice(items: Tensor, of: Box, wanted: Box) -> tuple[Tensor, Tensor]:
    """Places in the slice `wanted` of items of the slice `of`, and whether it has them."""
    into, both = torch.zeros_like(items), torch.ones_like(items, dtype=torch.bool)
    step = wide = 1
    for (begin, end), (start, stop) in zip(reversed(of), reversed(wanted), strict=True):
        index = items // step % (end - begin) + begin
        both &= (index >= start) & (index < stop)
        into += (index - start) * wide
        step, wide = step * (end - begin), wide * (stop - start)
    return into, both
