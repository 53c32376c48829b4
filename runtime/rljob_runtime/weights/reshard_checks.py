"""Check every reshard: all names and elements, and the sums of sent and received slices.

Called by the reshard state. All devices compute the same index from the plan, exchange one number for each
box that they sent or received, and find the same differences. All of them stop, each naming parameter and
rank.
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
from rljob_runtime.weights.reshard.parcels import box_view

REMEDY = "the run stops, resume from the last checkpoint"


SumIndex = tuple[int, int]
"""A device, and an index in its list of sums."""


@dataclass(frozen=True, slots=True)
class SumPair:
    """Two numbers that have to be equal. replicas: of two devices that trained the same box."""

    name: str
    box: Box
    first: SumIndex
    second: SumIndex
    replicas: bool = False


@dataclass(slots=True)
class ReceivedSlices:
    """The slices that a device received. elements: of each slice; sums: of each box."""

    elements: dict[str, int] = field(default_factory=dict)
    sums: dict[tuple[str, Box], Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Index:
    """The order of all devices' sums. sent, received: pieces of this device. lengths: of every device's
    list."""

    sent: list[TensorBox] = field(default_factory=list)
    received: list[TensorBox] = field(default_factory=list)
    pairs: list[SumPair] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class ReshardChecks:
    """The checks of a plan on one device. sent, generated: types in transit and in the rollout. group: all
    devices of the plan, whose ranks are theirs; None for one device. wait: waits for an exchange. merge:
    applied to what is sent."""

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
        self._update = {
            region.tensor.name: region.box for region in plan.update.local_boxes(device)
        }
        self._rollout = {
            region.tensor.name: region.box for region in plan.rollout.local_boxes(device)
        }
        self._index = _index(plan, device)
        self._received_boxes: dict[str, list[Box]] = {}
        for region in self._index.received:
            self._received_boxes.setdefault(region.tensor.name, []).append(region.box)

    @property
    def count(self) -> int:
        """The number of slices and pairs of sums that every reshard compares."""
        return len(self._rollout) + len(self._index.pairs)

    def complete(
        self, elements: Mapping[str, int], *, trains: bool, version: int | None = None
    ) -> None:
        """Raise WeightsError unless these are the device's slices. elements: by name. version: None before
        the first reshard."""
        boxes = self._update if trains else self._rollout
        wrong = [f"{name} is missing" for name in boxes if name not in elements]
        wrong += [f"{name} belongs to another rank" for name in elements if name not in boxes]
        wrong += [
            f"{name} has {elements[name]} elements, not {boxes[name].items}"
            for name in boxes
            if name in elements and elements[name] != boxes[name].items
        ]
        if wrong:
            side = "update" if trains else "rollout"
            when = "at the start" if version is None else f"at version {version}"
            raise WeightsError(
                f"{side} weights of rank {self._device} are incomplete {when} "
                f"({len(wrong)} parameters): {'; '.join(wrong[:5])}; {REMEDY}"
            )

    def sent_sums(self, update: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the sums of the boxes that this device sends, before they may leave the device."""
        return [
            slice_sum(self._cast(region, self._merge(region, values)), region.box)
            for region in self._index.sent
            if (name := region.tensor.name)
            for values in [box_view(update[name], self._update[name], region.box)]
        ]

    def compare(
        self, sent_sums: list[Tensor], received_slices: ReceivedSlices, *, version: int
    ) -> None:
        """Exchange the sums, [1 + boxes] → [devices · (1 + most boxes)], 8 bytes each. Raises WeightsError on
        every device where a slice is missing on one, or two sums differ."""
        incomplete: WeightsError | None = None
        try:
            self.complete(received_slices.elements, trains=False, version=version)
        except WeightsError as error:
            incomplete = error
        local_sums = torch.zeros(1 + max(self._index.lengths), dtype=torch.int64)
        local_sums[0] = incomplete is not None
        received_sums = (
            []
            if incomplete
            else [received_slices.sums[p.tensor.name, p.box] for p in self._index.received]
        )
        if not incomplete and (sums := [*sent_sums, *received_sums]):
            local_sums[1 : 1 + len(sums)] = torch.stack(sums).cpu()
        all_sums = self._wait(start_gather(local_sums, self._group)).view(
            len(self._index.lengths), -1
        )
        if incomplete:
            raise incomplete
        if ranks := all_sums[:, 0].nonzero().view(-1).tolist():
            raise WeightsError(
                f"rollout weights of ranks {ranks} are incomplete at version {version}, whose errors name "
                f"the parameters; {REMEDY}"
            )
        compared_sums = all_sums[:, 1:]
        wrong = [
            pair
            for pair in self._index.pairs
            if compared_sums[pair.first] != compared_sums[pair.second]
        ]
        if wrong:
            raise WeightsError(_difference(wrong, version))

    def received_slices(self, rollout: Mapping[str, Tensor]) -> ReceivedSlices:
        """Return the slices that this device received, when it has all of them."""
        received_slices = ReceivedSlices()
        collections.deque(self.recording(rollout.items(), received_slices), maxlen=0)
        return received_slices

    def recording(
        self, slices: Iterable[tuple[str, Tensor]], received_slices: ReceivedSlices
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the same slices, each recorded before it is passed on."""
        for name, tensor in slices:
            received_slices.elements[name] = tensor.numel()
            full_box = self._rollout.get(name)
            if full_box is not None and tensor.numel() == full_box.items:
                for box in self._received_boxes.get(name, ()):
                    received_slices.sums[name, box] = slice_sum(
                        box_view(tensor, full_box, box), box
                    )
            yield name, tensor

    def logprobs(
        self,
        gap: float,
        sent_sums: list[Tensor],
        rollout_slices: Mapping[str, Tensor] | None,
        *,
        version: int,
    ) -> None:
        """Exchange the distances of log-probs between engines, [1] → [devices], 8 bytes each.

        Raises WeightsError on every device where one is larger than types explain. The error names the
        parameters that changed since they were received, else the rank. rollout_slices: None in engines that
        cannot return their weights.
        """
        local_gap = torch.tensor([gap], dtype=torch.float64)
        gaps: list[float] = self._wait(start_gather(local_gap, self._group)).tolist()
        off = [rank for rank, gap in enumerate(gaps) if not gap <= TOLERANCE[self._sent]]
        if off and rollout_slices is not None:
            self.compare(sent_sums, self.received_slices(rollout_slices), version=version)
        for rank in off:
            check_probe(gaps[rank], dtype=self._sent, version=version, where=f" of rank {rank}")

    def _cast(self, region: TensorBox, values: Tensor) -> Tensor:
        """Return the values in the rollout's type."""
        name = region.tensor.name
        return (
            values.detach()
            .to(weight_dtype(name, self._sent))
            .to(weight_dtype(name, self._generated))
        )


def _index(plan: ReshardPlan, device: int) -> _Index:
    """Return every device's list: the pieces that it sends, in the order of the plan, then those that it
    receives. A piece that is forwarded within a node is compared with the sum of its source."""
    ranks = max(plan.update.devices.stop, plan.rollout.devices.stop)
    checks_index, num_sent, num_received = _Index(), [0] * ranks, [0] * ranks
    sources: dict[tuple[str, Box], list[SumIndex]] = {}
    targets: list[tuple[TensorBox, int | None, SumIndex]] = []
    for region, move in _moves(plan):
        for target in move.targets:
            source = None if move.hop else len(sources.get((region.tensor.name, region.box), ()))
            targets.append((region, source, (target, num_received[target])))
            num_received[target] += 1
            checks_index.received += [region] if target == device else []
        if not move.hop:
            sum_index = (move.source, num_sent[move.source])
            sources.setdefault((region.tensor.name, region.box), []).append(sum_index)
            num_sent[move.source] += 1
            checks_index.sent += [region] if move.source == device else []
    checks_index.lengths = [a + b for a, b in zip(num_sent, num_received, strict=True)]
    for (name, box), sum_indices in sources.items():
        checks_index.pairs += [
            SumPair(name, box, sum_indices[0], other, replicas=True) for other in sum_indices[1:]
        ]
    for region, source, (target, index) in targets:
        name, box = region.tensor.name, region.box
        sum_index = (target, num_sent[target] + index)
        checks_index.pairs.append(SumPair(name, box, sources[name, box][source or 0], sum_index))
    return checks_index


def _moves(plan: ReshardPlan) -> Iterator[tuple[TensorBox, Move]]:
    """Yield the moves of all tensors and devices."""
    for bucket in plan.buckets:
        for stack, number in bucket:
            tensors = plan.stacks[stack].member(number)
            yield from (
                (TensorBox(tensors[move.tensor], move.box), move) for move in plan.moves[stack]
            )


def _difference(wrong: Iterable[SumPair], version: int) -> str:
    pairs = list(wrong)
    parameters = sorted({pair.name for pair in pairs})
    shown = [_description(pair) for pair in pairs[:5]]
    return (
        f"weights version {version} differ after the reshard ({len(parameters)} parameters): "
        f"{'; '.join(shown)}; {REMEDY}"
    )


def _description(pair: SumPair) -> str:
    """Return the text of a difference."""
    top, bottom, left, right = pair.box
    where = f"{pair.name} rows {top}–{bottom - 1} columns {left}–{right - 1}"
    one, two = pair.first[0], pair.second[0]
    if pair.replicas:
        return f"{where}: update ranks {one} and {two} trained different values"
    return f"{where}: rollout rank {two} does not hold what update rank {one} gave"
