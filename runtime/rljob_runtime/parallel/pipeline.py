"""Runs a model whose layers pipeline ranks share, micro-batch by micro-batch, each of its own length.

Called by the update engine with its rank's chunks of the model. torch's own pipelines take micro-batches
of one shape, and samples are ragged. A rank receives from another in the order in which that one sends,
so that no backend needs tags; the next tensor of each comes in while it computes.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import rank_of, size_of
from rljob_runtime.devices.wire import Pending, start_receive, start_send
from rljob_runtime.errors import WorkerError
from rljob_runtime.parallel.pipeline_schedule import Message, Schedule, Step

Chunk = Callable[[int, Tensor | None], Tensor]
"""Part of the model: number of the micro-batch and the part before's output (None: there is none) →
its output, of the micro-batch's shape; of the last part what `run_pipeline` gives back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What chunks give each other. shapes: of each micro-batch, known to all ranks."""

    shapes: Sequence[tuple[int, ...]]
    dtype: torch.dtype
    device: torch.device

    def empty(self, micro_batch: int) -> Tensor:
        """Room for a micro-batch's."""
        return torch.empty(self.shapes[micro_batch], dtype=self.dtype, device=self.device)


def run_pipeline(
    chunks: Sequence[Chunk],
    hidden: Hidden,
    group: ProcessGroup | None,
    *,
    trains: bool = True,
    after_backward: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """All micro-batches through all ranks' chunks; the rank with the last gets its outputs, by
    micro-batch and detached, the others nothing.

    chunks: this rank's, equally many on all ranks, in the model's order. trains: the last chunk's
    outputs are losses, each of which is run backward; parameters add their gradients up. after_backward:
    called after each micro-batch's backward pass through a chunk, when the ranks before have got their
    gradient. A rank keeps the activations of `most_held(steps)` passes. Raises WorkerError when a rank is
    gone, or silent for longer than the group's timeout.
    """
    schedule = Schedule(
        ranks=size_of(group), chunks=len(chunks), micro_batches=len(hidden.shapes), trains=trains
    )
    rank = rank_of(group)
    mail = _Mail(schedule, hidden, group)
    passes = _Passes(schedule, chunks, mail)
    with torch.set_grad_enabled(trains):
        for step in schedule.steps(rank):
            if step.direction == "forward":
                passes.forward(step)
            else:
                passes.backward(step)
                after_backward()
    mail.close()
    return [passes.outputs[number] for number in sorted(passes.outputs)]


def pipeline_bytes(schedule: Schedule, rank: int, hidden: Hidden) -> int:
    """Bytes that a rank sends: each micro-batch once forward from each of its chunks but the model's
    last, and once backward from each but the first."""
    if schedule.ranks == 1:
        return 0
    sent = [hidden.shapes[message.needed_by.micro_batch] for message in schedule.messages(rank)]
    return sum(prod(shape) for shape in sent) * hidden.dtype.itemsize


class _Passes:
    """Runs steps, and keeps what backward passes need of forward ones."""

    def __init__(self, schedule: Schedule, chunks: Sequence[Chunk], mail: "_Mail") -> None:
        self.outputs: dict[int, Tensor] = {}
        self._schedule, self._chunks, self._mail = schedule, chunks, mail
        self._held: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}

    def forward(self, step: Step) -> None:
        given = None
        if step.stage > 0:
            given = self._mail.receive(step).requires_grad_(self._schedule.trains)
        made = self._chunks[step.stage // self._schedule.ranks](step.micro_batch, given)
        if self._schedule.trains:
            self._held[step.stage, step.micro_batch] = given, made
        if step.stage < self._schedule.stages - 1:
            self._mail.send(Step("forward", step.stage + 1, step.micro_batch), made.detach())
        else:
            self.outputs[step.micro_batch] = made.detach()

    def backward(self, step: Step) -> None:
        given, made = self._held.pop((step.stage, step.micro_batch))
        if step.stage < self._schedule.stages - 1:
            made = _GivenGradient.apply(made, self._mail.receive(step))  # type: ignore[no-untyped-call]
        made.backward()  # type: ignore[no-untyped-call]
        if given is not None:
            back = torch.zeros_like(given) if given.grad is None else given.grad
            self._mail.send(Step("backward", step.stage - 1, step.micro_batch), back)


class _GivenGradient(torch.autograd.Function):
    """A number whose backward pass gives a tensor its gradient. torch's own way, `backward(gradient)`,
    imports its compiler, for seconds of every process."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return made.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


class _Mail:
    """Tensors from and to the other ranks of a pipeline, by the step that needs them."""

    def __init__(self, schedule: Schedule, hidden: Hidden, group: ProcessGroup | None) -> None:
        self._rank, self._hidden, self._group = rank_of(group), hidden, group
        self._ranks = schedule.ranks
        self._expected = {
            source: deque(m for m in schedule.messages(source) if m.target == self._rank)
            for source in range(schedule.ranks)
            if source != self._rank
        }
        self._coming: dict[int, tuple[Message, Pending]] = {}
        self._arrived: dict[Step, Tensor] = {}
        self._sent: list[Pending] = []
        for source in self._expected:
            self._await_next(source)

    def send(self, needed_by: Step, tensor: Tensor) -> None:
        """Send what a step needs to the rank that takes it, maybe this one."""
        target = needed_by.stage % self._ranks
        if target == self._rank:
            self._arrived[needed_by] = tensor
            return
        self._sent = [sending for sending in self._sent if not sending.done()]
        with self._naming(f"rank {target} does not take", needed_by):
            self._sent.append(start_send(tensor, target, self._group))

    def receive(self, step: Step) -> Tensor:
        """What the step needs."""
        while step not in self._arrived:
            before = step.stage + (-1 if step.direction == "forward" else 1)
            source = before % self._ranks
            message, pending = self._coming.pop(source)
            self._await_next(source)
            with self._naming(f"rank {source} has not sent", message.needed_by):
                self._arrived[message.needed_by] = pending.wait()
        return self._arrived.pop(step)

    def close(self) -> None:
        """Wait until all is received that was sent."""
        for sending in self._sent:
            with self._naming("another rank does not take", None):
                sending.wait()

    def _await_next(self, source: int) -> None:
        if self._expected[source]:
            message = self._expected[source].popleft()
            room = self._hidden.empty(message.needed_by.micro_batch)
            with self._naming(f"rank {source} will not send", message.needed_by):
                self._coming[source] = message, start_receive(room, source, self._group)

    @contextmanager
    def _naming(self, what: str, step: Step | None) -> Iterator[None]:
        """Say in an error who waited for whom, and for what."""
        of = (
            f"micro-batch {step.micro_batch} {step.direction} for stage {step.stage}"
            if step
            else "all"
        )
        try:
            yield
        except RuntimeError as error:
            raise WorkerError(f"pipeline rank {self._rank}: {what} {of}: {error}") from error
