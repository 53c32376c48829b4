"""Ways to bring weights to another layout, on one rank. Called by `__main__`, whose ways take turns."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_api.model.architecture import ExpertSizes, Shape
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_plan.resharding.layouts import LayoutTable, rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.devices.backend import Mark, SideStream
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.parcels import box_view
from rljob_runtime.weights.reshard.swap import SwappedTensors

DTYPE = torch.bfloat16
WIDTHS = Widths(update=2, rollout=2)
Way = Callable[[], float]
"""Does it once, and returns its seconds on this rank."""


def dense(hidden: int, layers: int, vocab: int) -> Shape:
    """Grouped queries, as Qwen3's."""
    return Shape(
        family="qwen3",
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        intermediate=3 * hidden,
        heads=8,
        kv_heads=4,
        head_dim=hidden // 8,
        qk_norm=True,
    )


def sparse(hidden: int, layers: int, vocab: int) -> Shape:
    """Twelve experts in each layer."""
    experts = ExpertSizes(count=12, intermediate=hidden)
    return replace(dense(hidden, layers, vocab), family="qwen3_moe", experts=experts)


def plan_of(
    shape: Shape,
    update: dict[str, int],
    rollout: dict[str, int],
    *,
    bucket_bytes: int | None = None,
) -> ReshardPlan:
    """On the same devices, one node."""
    return make_reshard_plan(
        update_layout(shape, UpdateDegrees.model_validate(update)),
        rollout_layout(shape, RolloutDegrees.model_validate(rollout)),
        WIDTHS,
        bucket_bytes=bucket_bytes,
    )


def slices(layout: LayoutTable, rank: int) -> dict[str, Tensor]:
    """A rank's weights, whose values tell where they belong."""
    return {piece.tensor.name: filled(piece) for piece in layout.local_boxes(rank)}


def filled(piece: TensorBox) -> Tensor:
    """Values by row of the whole tensor: the same whoever makes them."""
    box, name = piece.box, piece.tensor.name
    rows = torch.arange(box.top, box.bottom, dtype=torch.float32) % 251
    made = rows if len(piece.tensor.shape) == 1 else rows[:, None].expand(*box.size)
    return made.to(weight_dtype(name, DTYPE)).contiguous()


def empty(piece: TensorBox) -> Tensor:
    """Of a slice's size and type, every page present."""
    size = piece.box.size[: len(piece.tensor.shape)]
    return torch.zeros(size, dtype=weight_dtype(piece.tensor.name, DTYPE))


class Reshard:
    """Ours on one rank, into weights that are there already, as a device's allocator would give them."""

    def __init__(
        self, plan: ReshardPlan, rank: int, *, shares_memory: bool, backend: CpuBackend
    ) -> None:
        self.update = slices(plan.update, rank)
        self.resharder = Resharder(
            plan, backend, sent=DTYPE, timeout_seconds=300, shares_memory=shares_memory
        )
        self._made = {name: empty(piece) for name, piece in self.resharder.rollout_pieces.items()}

    def __call__(self, **how: Any) -> float:
        """Seconds of a reshard."""
        started = time.perf_counter()
        dict(self.resharder.run(self.update, lambda piece: self._made[piece.tensor.name], **how))
        return time.perf_counter() - started

    def check(self) -> None:
        """Every slice is right."""
        for name, piece in self.resharder.rollout_pieces.items():
            assert torch.equal(self._made[name], filled(piece)), name


def bare_gather(plan: ReshardPlan, rank: int) -> Way:
    """One all-gather of as many bytes as a rank has, from memory end to end to memory that is there."""
    held = sum(tensor.nbytes for tensor in slices(plan.update, rank).values())
    mine = torch.ones(held, dtype=torch.uint8)
    whole = torch.ones(held * dist.get_world_size(), dtype=torch.uint8)
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def do() -> float:
        started = time.perf_counter()
        gather(whole, mine)
        return time.perf_counter() - started

    return do


def bare_sends(plan: ReshardPlan, rank: int) -> Way:
    """The same all-gather of two ranks by a send and a receive each: no library's buffers between them."""
    held = sum(tensor.nbytes for tensor in slices(plan.update, rank).values())
    mine = torch.ones(held, dtype=torch.uint8)
    parts = torch.ones(held * 2, dtype=torch.uint8).split(held)

    def do() -> float:
        started = time.perf_counter()
        works = [dist.isend(mine, 1 - rank), dist.irecv(parts[1 - rank], 1 - rank)]
        parts[rank].copy_(mine)
        for work in works:
            assert work is not None, "both ranks are of the group"
            work.wait()
        return time.perf_counter() - started

    return do


def plain_load(plan: ReshardPlan, rank: int) -> Way:
    """As a script would: gather each tensor's parts, put the whole one into a state dict, load its slice."""
    update = slices(plan.update, rank)
    boxes = {piece.tensor.name: piece.box for piece in plan.update.local_boxes(rank)}
    wanted = {piece.tensor.name: piece for piece in plan.rollout.local_boxes(rank)}
    target = {name: empty(piece) for name, piece in wanted.items()}

    def do() -> float:
        started = time.perf_counter()
        state: dict[str, Tensor] = {}
        for name, own in update.items():
            whole = wanted[name].tensor.shape
            if own.shape == whole:
                state[name] = own.clone()
                continue
            parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, own)
            state[name] = torch.cat(parts, dim=0 if own.shape[0] < whole[0] else 1)
        for name, piece in wanted.items():
            rows, columns = (*piece.tensor.shape, 1)[:2]
            target[name].copy_(box_view(state[name], Box(0, rows, 0, columns), piece.box))
        seconds = time.perf_counter() - started
        assert boxes.keys() == state.keys()
        return seconds

    return do


def memcpy(plan: ReshardPlan, rank: int) -> Way:
    """The bytes that a rank generates with, from memory to memory, both end to end."""
    size = sum(tensor.nbytes for tensor in slices(plan.rollout, rank).values())
    given, taken = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)

    def do() -> float:
        started = time.perf_counter()
        taken.copy_(given)
        return time.perf_counter() - started

    return do


class SlowStream:
    """A side stream whose work takes longer, without a processor: a slow link or copy engine."""

    def __init__(self, inner: SideStream, backend: "SlowBackend") -> None:
        self._inner, self._backend = inner, backend

    def queue(self) -> AbstractContextManager[None]:
        return self._inner.queue()

    def run(self, work: Callable[[], None]) -> Mark:
        def slowly() -> None:
            work()
            time.sleep(self._backend.seconds)

        return self._inner.run(slowly)

    def mark(self) -> Mark:
        return self._inner.mark()


class SlowBackend(CpuBackend):
    """An emulated device whose side streams take `seconds` more for each piece of work."""

    seconds = 0.0

    def side_stream(self) -> Any:
        return SlowStream(super().side_stream(), self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Seconds of a rank. copies: of all throttled copies. alone: without them. together: with them."""

    copies: float
    alone: float
    together: float

    @property
    def share(self) -> float:
        """Time hidden ÷ time of the copies."""
        return max(0.0, min(1.0, (self.alone + self.copies - self.together) / self.copies))


def hidden_swaps(plan: ReshardPlan, rank: int, *, gather: float, swap: float) -> Hidden:
    """Of the update weights that leave. gather, swap: seconds that each bucket takes more."""
    links, engine = SlowBackend(name=f"emulated:{rank}"), SlowBackend(name=f"emulated:{rank}")
    side = Reshard(plan, rank, shares_memory=True, backend=links)
    resting = SwappedTensors(side.update, engine)
    side()  # warms up
    links.seconds, engine.seconds = gather, swap
    dist.barrier()
    alone = side()
    dist.barrier()
    together = side(release=resting.leave)
    return Hidden(copies=swap * len(plan.buckets), alone=alone, together=together)


def hidden_prefetch(plan: ReshardPlan, rank: int, *, copies: float) -> Hidden:
    """Of all that comes back while the device computes. copies: seconds that they take more."""
    engine = SlowBackend(name=f"emulated:{rank}")
    update = slices(plan.update, rank)
    resting = SwappedTensors(update, engine)
    resting.leave(list(update))()
    engine.seconds = copies
    alone = _compute(1.2 * copies)
    started = time.perf_counter()
    resting.back()
    _compute(1.2 * copies)
    resting.ready()
    return Hidden(copies=copies, alone=alone, together=time.perf_counter() - started)


def _compute(seconds: float) -> float:
    started = time.perf_counter()
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    while time.perf_counter() - started < seconds:
        left @ right
    return time.perf_counter() - started


def traced(backend: CpuBackend) -> list[tuple[float, dict[str, int]]]:
    """Bytes by kind, from now on, whenever something is counted."""
    found: list[tuple[float, dict[str, int]]] = []
    ledger, started = backend.ledger, time.perf_counter()
    track = ledger.track

    def tracking(kind: MemoryKind, tensors: Any) -> None:
        track(kind, tensors)
        found.append((time.perf_counter() - started, ledger.report().kind_bytes))

    changed: Any = ledger
    changed.track = tracking
    return found


def turns(ways: dict[str, Way], repetitions: int) -> Iterator[tuple[str, float]]:
    """Every way, after a turn that warms up; all ranks begin together."""
    for turn in range(repetitions + 1):
        for name, way in ways.items():
            dist.barrier()
            seconds = way()
            if turn:
                yield name, seconds
