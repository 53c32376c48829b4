"""Map an optimizer's state to items of weights, so that ranks of another layout can load it.

A rank saves its state with the segments of each tensor. A rank of another layout fills its state from the
files of all ranks, a tensor at a time. `worker.trained_model` calls this.
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
"""[start, stop) of each dim of a full tensor."""
MAIN = "main"
"""The kind of main weights; with ZeRO 3 a rank's weights are main weights, and its state has none."""
CHUNK_ITEMS = 2**22
"""Items compared at a time between slices that are cut differently."""
REMEDY = "resume with the degrees of the checkpoint, or start a new job from its model"


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """A weight's slice `box`, by Hugging Face name, whose items are contiguous in a parameter."""

    name: str
    box: Box

    @property
    def count(self) -> int:
        """Return the number of items in the box."""
        return prod(stop - start for start, stop in self.box)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRange:
    """The items that a tensor of a state belongs to: from `first` on, of `parameters` laid end to end.

    kind: such as `exp_avg`. parameters: empty for a number that all ranks have. in_float8: its scales are
    another tensor, of blocks of this one.
    """

    kind: str
    shape: tuple[int, ...]
    parameters: tuple[str, ...] = ()
    first: int = 0
    in_float8: bool = False

    def stored(self, name: str, values: Tensor) -> dict[str, Tensor]:
        """Return values of `SavedStates.fill` in the state's format under that name.

        8-bit values are rounded, identically on all ranks with the same shard.
        """
        return moment_in_float8(name, self.kind, values) if self.in_float8 else {name: values}


@dataclass(frozen=True, slots=True)
class StateSegment:
    """Maps items [offset, offset + count) of a state's tensor to items from `first` on of a box, row
    by row."""

    kind: str
    name: str
    box: Box
    first: int
    offset: int
    count: int


def state_segments(
    state_range: StateRange, spans: Mapping[str, Iterable[WeightSpan]]
) -> Iterator[StateSegment]:
    """Yield the segments of one tensor of a state. spans: of each local parameter, in order."""
    size = prod(state_range.shape)
    if not state_range.parameters:
        yield StateSegment(state_range.kind, "", (), 0, 0, size)
        return
    begin = 0
    for span in (span for name in state_range.parameters for span in spans[name]):
        first, last = (
            max(begin, state_range.first),
            min(begin + span.count, state_range.first + size),
        )
        if first < last:
            offset = first - state_range.first
            yield StateSegment(
                state_range.kind, span.name, span.box, first - begin, offset, last - first
            )
        begin += span.count


def as_rows(segments: Iterable[StateSegment]) -> list[tuple[object, ...]]:
    """Return segments in the format of a file."""
    return [astuple(segment) for segment in segments]


def from_rows(rows: Iterable[Iterable[object]]) -> list[StateSegment]:
    """Return segments from rows of a file: the inverse of `as_rows`."""
    return [StateSegment(*row) for row in rows]  # type: ignore[arg-type]


def adamw_ranges(
    state: Mapping[str, Tensor], first: Mapping[str, int] | None = None
) -> dict[str, StateRange]:
    """Return the ranges of a state of `AdamW`.

    first: the first local item of each parameter; 0 if not named. Scales of 8-bit moments have no ranges of
    their own.
    """
    ranges: dict[str, StateRange] = {}
    for name, tensor in state.items():
        kind, _, parameter = name.partition(".")
        if kind.endswith("_scale"):
            continue
        ranges[name] = StateRange(
            kind=kind,
            shape=tensor.shape,
            parameters=(parameter,) if parameter else (),
            first=(first or {}).get(parameter, 0),
            in_float8=scales_name(name, kind) in state,
        )
    return ranges


class SavedStates:
    """States of all ranks of a layout. states: tensors by name, with the segments of each."""

    def __init__(
        self, states: Iterable[tuple[Mapping[str, Tensor], Mapping[str, list[StateSegment]]]]
    ):
        self._sources: dict[tuple[str, str], list[tuple[StateSegment, Callable[[], Tensor]]]]
        self._sources = defaultdict(list)
        for tensors, segments in states:
            for name, tensor_segments in segments.items():
                for segment in tensor_segments:
                    read = partial(moment_values, tensors, name, segment.kind)
                    self._sources[segment.kind, segment.name].append((segment, read))

    @property
    def kinds(self) -> set[str]:
        """Return all kinds that some rank saved."""
        return {kind for kind, _ in self._sources}

    def add_full(
        self, kind: str, name: str, shape: tuple[int, ...], read: Callable[[], Tensor]
    ) -> None:
        """Add a full weight's tensor that is not from the ranks' files."""
        box = tuple((0, size) for size in shape)
        self._sources[kind, name].append((StateSegment(kind, name, box, 0, 0, prod(shape)), read))

    def fill(self, of: StateRange, segments: Iterable[StateSegment]) -> Tensor:
        """Return a rank's values of a range. Raises CheckpointError if no rank saved one of its items."""
        size = prod(of.shape)
        filled, mask = torch.zeros(0), torch.zeros(size, dtype=torch.bool)
        for segment in segments:
            for saved, read in self._sources.get((segment.kind, segment.name), ()):
                items: Tensor | None = None
                for source, target in _overlaps(saved, segment):
                    if items is None:
                        items = read().reshape(-1)[saved.offset : saved.offset + saved.count]
                    if len(filled) < size:
                        filled = torch.zeros(size, dtype=items.dtype)
                    filled[target], mask[target] = items[source], True
        if not mask.all():
            parameter = next(iter(of.parameters), of.kind)
            raise CheckpointError(
                f"the checkpoint's optimizers have {int(mask.sum())} of {len(mask)} items of {of.kind} of "
                f"{parameter}; {REMEDY}"
            )
        return filled.view(of.shape)


def _overlaps(
    saved: StateSegment, target: StateSegment
) -> Iterator[tuple[Tensor | slice, Tensor | slice]]:
    """Yield the items that both segments have: their indices in the saved items, and in the filled tensor."""
    if saved.box[1:] == target.box[1:]:  # rows of the same tensor follow each other in both
        width = prod(stop - start for start, stop in saved.box[1:])
        saved_start, target_start = (
            segment.first + width * (segment.box[0][0] if segment.box else 0)
            for segment in (saved, target)
        )
        first, last = (
            max(saved_start, target_start),
            min(saved_start + saved.count, target_start + target.count),
        )
        if first < last:
            offset = first - target_start + target.offset
            yield (
                slice(first - saved_start, last - saved_start),
                slice(offset, offset + last - first),
            )
        return
    for first in range(0, saved.count, CHUNK_ITEMS):
        items = torch.arange(first, min(first + CHUNK_ITEMS, saved.count))
        into, in_both = _index_in_box(items + saved.first, saved.box, target.box)
        in_both &= (into >= target.first) & (into < target.first + target.count)
        if in_both.any():
            yield items[in_both], into[in_both] - target.first + target.offset


def _index_in_box(items: Tensor, source: Box, target: Box) -> tuple[Tensor, Tensor]:
    """Return indices in the box `target` of items of the box `source`, and whether it contains them."""
    into, in_both = torch.zeros_like(items), torch.ones_like(items, dtype=torch.bool)
    step = wide = 1
    for (begin, end), (start, stop) in zip(reversed(source), reversed(target), strict=True):
        index = items // step % (end - begin) + begin
        in_both &= (index >= start) & (index < stop)
        into += (index - start) * wide
        step, wide = step * (end - begin), wide * (stop - start)
    return into, in_both
