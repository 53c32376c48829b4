"""What every reshard is checked by: all names and elements, and sums of what was given and what arrived.

Called by the reshard state. All devices compute the same index from the plan, exchange one number for each
box that they gave or took, and see the same differences: all of them stop, each naming parameter and rank.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_plan.resharding.routes import Move
from rljob_runtime.devices.wire import Pending, start_gather
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.models.slice_sums import slice_sum
from rljob_runtime.rollout.sync_probe import TOLERANCE, check_probe
from rljob_runtime.weights.reshard.merging import Merge, as_trained
from rljob_runtime.weights.reshard.parcels import part

REMEDY = "the run stops, resume from the last checkpoint"


Place = tuple[int, int]
"""A device, and a place in its list."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two numbers that have to be equal. replicas: of two devices that trained the same box."""

    name: str
    box: Box
    first: Place
    second: Place
    replicas: bool = False


@dataclass(slots=True)
class Taken:
    """What a device took. elements: of each slice; sums: of each box that came."""

    elements: dict[str, int] = field(default_factory=dict)
    sums: dict[tuple[str, Box], Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Index:
    """given, taken: of this device. lengths: of every device's list."""

    given: list[TensorBox] = field(default_factory=list)
    taken: list[TensorBox] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class ReshardChecks:
    """Of a plan on one device. sent, generated: types on the way and in the rollout. group: of all devices
    of the plan, whose ranks are theirs; None for one. wait: for what they exchange. merge: of what is
    given."""

    def __init__(
        self,
        plan: ReshardPlan,
        device: int,
        *,
        sent: torch.dtype,
        generated: torch.dtype,
        group: ProcessGroup | None,
        wait: Callable[[Pending], Tensor] = Pending.wait,
        merge: Merge = as_trained,
    ) -> None:
        self._merge = merge
        self._device, self._group, self._wait = device, group, wait
        self._sent, self._generated = sent, generated
        self._update = {piece.tensor.name: piece.box for piece in plan.update.local_boxes(device)}
        self._rollout = {piece.tensor.name: piece.box for piece in plan.rollout.local_boxes(device)}
        self._index = _index(plan, device)
        self._came: dict[str, list[Box]] = {}
        for piece in self._index.taken:
            self._came.setdefault(piece.tensor.name, []).append(piece.box)

    @property
    def count(self) -> int:
        """Slices and pairs of sums that every reshard compares."""
        return len(self._rollout) + len(self._index.pairs)

    def complete(
        self, held: Mapping[str, int], *, trains: bool, version: int | None = None
    ) -> None:
        """Raise WeightsError unless these are the device's slices. held: elements by name. version: None
        before the first reshard."""
        boxes = self._update if trains else self._rollout
        wrong = [f"{name} is missing" for name in boxes if name not in held]
        wrong += [f"{name} belongs to another rank" for name in held if name not in boxes]
        wrong += [
            f"{name} has {held[name]} elements, not {boxes[name].items}"
            for name in boxes
            if name in held and held[name] != boxes[name].items
        ]
        if wrong:
            side = "update" if trains else "rollout"
            when = "at the start" if version is None else f"at version {version}"
            raise WeightsError(
                f"{side} weights of rank {self._device} are incomplete {when} "
                f"({len(wrong)} parameters): {'; '.join(wrong[:5])}; {REMEDY}"
            )

    def given(self, update: Mapping[str, Tensor]) -> list[Tensor]:
        """Sums of what this device gives, before it may leave the device."""
        return [
            slice_sum(self._cast(piece, self._merge(piece, own)), piece.box)
            for piece in self._index.given
            if (name := piece.tensor.name)
            for own in [part(update[name], self._update[name], piece.box)]
        ]

    def compare(self, given: list[Tensor], taken: Taken, *, version: int) -> None:
        """Exchange the sums, [1 + boxes] → [devices · (1 + most boxes)], 8 bytes each. Raises WeightsError on
        every device where a slice is missing on one, or two sums differ."""
        incomplete: WeightsError | None = None
        try:
            self.complete(taken.elements, trains=False, version=version)
        except WeightsError as error:
            incomplete = error
        own = torch.zeros(1 + max(self._index.lengths), dtype=torch.int64)
        own[0] = incomplete is not None
        came = [] if incomplete else [taken.sums[p.tensor.name, p.box] for p in self._index.taken]
        if not incomplete and (sums := [*given, *came]):
            own[1 : 1 + len(sums)] = torch.stack(sums).cpu()
        all_sums = self._wait(start_gather(own, self._group)).view(len(self._index.lengths), -1)
        if incomplete:
            raise incomplete
        if ranks := all_sums[:, 0].nonzero().view(-1).tolist():
            raise WeightsError(
                f"rollout weights of ranks {ranks} are incomplete at version {version}, whose errors name "
                f"the parameters; {REMEDY}"
            )
        found = all_sums[:, 1:]
        wrong = [pair for pair in self._index.pairs if found[pair.first] != found[pair.second]]
        if wrong:
            raise WeightsError(_difference(wrong, version))

    def taken(self, rollout: Mapping[str, Tensor]) -> Taken:
        """What this device took, when it has all of it."""
        taken = Taken()
        collections.deque(self.noted(rollout.items(), taken), maxlen=0)
        return taken

    def noted(
        self, slices: Iterable[tuple[str, Tensor]], taken: Taken
    ) -> Iterator[tuple[str, Tensor]]:
        """The same slices, each noted before it is passed on."""
        for name, own in slices:
            taken.elements[name] = own.numel()
            whole = self._rollout.get(name)
            if whole is not None and own.numel() == whole.items:
                for box in self._came.get(name, ()):
                    taken.sums[name, box] = slice_sum(part(own, whole, box), box)
            yield name, own

    def logprobs(
        self, gap: float, given: list[Tensor], held: Mapping[str, Tensor] | None, *, version: int
    ) -> None:
        """Exchange the distances of log-probs between engines, [1] → [devices], 8 bytes each. Raises
        WeightsError on every device where one is more than types explain: of the parameters that changed
        since they arrived, else of the rank. held: None in engines that cannot show theirs."""
        own = torch.tensor([gap], dtype=torch.float64)
        gaps: list[float] = self._wait(start_gather(own, self._group)).tolist()
        off = [rank for rank, gap in enumerate(gaps) if not gap <= TOLERANCE[self._sent]]
        if off and held is not None:
            self.compare(given, self.taken(held), version=version)
        for rank in off:
            check_probe(gaps[rank], dtype=self._sent, version=version, where=f" of rank {rank}")

    def _cast(self, piece: TensorBox, values: Tensor) -> Tensor:
        """As they are in the rollout."""
        name = piece.tensor.name
        return (
            values.detach()
            .to(weight_dtype(name, self._sent))
            .to(weight_dtype(name, self._generated))
        )


def _index(plan: ReshardPlan, device: int) -> _Index:
    """Lists of every device: what it gives of its update weights, in the order of the plan, then what it
    takes. What is passed on within a node is compared with what it was given of."""
    ranks = max(plan.update.devices.stop, plan.rollout.devices.stop)
    found, given, taken = _Index(), [0] * ranks, [0] * ranks
    sources: dict[tuple[str, Box], list[Place]] = {}
    targets: list[tuple[TensorBox, int | None, Place]] = []
    for piece, move in _moves(plan):
        for target in move.targets:
            source = None if move.hop else len(sources.get((piece.tensor.name, piece.box), ()))
            targets.append((piece, source, (target, taken[target])))
            taken[target] += 1
            found.taken += [piece] if target == device else []
        if not move.hop:
            place = (move.source, given[move.source])
            sources.setdefault((piece.tensor.name, piece.box), []).append(place)
            given[move.source] += 1
            found.given += [piece] if move.source == device else []
    found.lengths = [a + b for a, b in zip(given, taken, strict=True)]
    for (name, box), places in sources.items():
        found.pairs += [Pair(name, box, places[0], other, replicas=True) for other in places[1:]]
    for piece, source, (target, index) in targets:
        name, box = piece.tensor.name, piece.box
        place = (target, given[target] + index)
        found.pairs.append(Pair(name, box, sources[name, box][source or 0], place))
    return found


def _moves(plan: ReshardPlan) -> Iterator[tuple[TensorBox, Move]]:
    """Of all tensors and devices."""
    for bucket in plan.buckets:
        for stack, number in bucket:
            tensors = plan.stacks[stack].member(number)
            yield from (
                (TensorBox(tensors[move.tensor], move.box), move) for move in plan.moves[stack]
            )


def _difference(wrong: Iterable[Pair], version: int) -> str:
    pairs = list(wrong)
    parameters = sorted({pair.name for pair in pairs})
    shown = [_told(pair) for pair in pairs[:5]]
    return (
        f"weights version {version} differ after the reshard ({len(parameters)} parameters): "
        f"{'; '.join(shown)}; {REMEDY}"
    )


def _told(pair: Pair) -> str:
    top, bottom, left, right = pair.box
    where = f"{pair.name} rows {top}–{bottom - 1} columns {left}–{right - 1}"
    one, two = pair.first[0], pair.second[0]
    if pair.replicas:
        return f"{where}: update ranks {one} and {two} trained different values"
    return f"{where}: rollout rank {two} does not hold what update rank {one} gave"
