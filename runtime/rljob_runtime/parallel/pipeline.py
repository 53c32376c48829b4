"""Run a model whose layers are split over pipeline ranks, micro-batch by micro-batch, each of a different
length.

Called by the update engine with its rank's chunks of the model. torch's pipelines take micro-batches of one
shape, and samples are ragged. A rank receives from another in the order in which that one sends, so that no
backend needs tags; the next tensor of each is received while it computes.
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
from rljob_runtime.parallel.pipeline_schedule import PipelineMessage, PipelineSchedule, PipelineStep

Chunk = Callable[[int, Tensor | None], Tensor]
"""A chunk of the model: takes the micro-batch's index and the previous chunk's output (None: there is none).
Returns its output, of the micro-batch's shape; the last chunk returns what `run_pipeline` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStates:
    """The tensors that chunks pass on. shapes: of each micro-batch, the same on all ranks."""

    shapes: Sequence[tuple[int, ...]]
    dtype: torch.dtype
    device: torch.device

    def empty(self, micro_batch: int) -> Tensor:
        """Return a buffer for a micro-batch's hidden states."""
        return torch.empty(self.shapes[micro_batch], dtype=self.dtype, device=self.device)


def run_pipeline(
    chunks: Sequence[Chunk],
    hidden: HiddenStates,
    group: ProcessGroup | None,
    *,
    trains: bool = True,
    after_backward: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """Run all micro-batches through all ranks' chunks. Return the last chunk's outputs on its rank, by
    micro-batch and detached, and nothing on the others.

    chunks: this rank's, equally many on all ranks, in the model's order. trains: the last chunk's outputs are
    losses, each of which is run backward; parameters accumulate their gradients. after_backward: called after
    each micro-batch's backward pass through a chunk, when the ranks before have their gradient. A rank keeps
    the activations of `peak_activations(steps)` passes. Raises WorkerError when a rank is lost, or silent for
    longer than the group's timeout.
    """
    schedule = PipelineSchedule(
        ranks=size_of(group), chunks=len(chunks), micro_batches=len(hidden.shapes), trains=trains
    )
    rank = rank_of(group)
    channel = _PipelineChannel(schedule, hidden, group)
    passes = _Passes(schedule, chunks, channel)
    with torch.set_grad_enabled(trains):
        for step in schedule.steps(rank):
            if step.direction == "forward":
                passes.forward(step)
            else:
                passes.backward(step)
                after_backward()
    channel.close()
    return [passes.outputs[number] for number in sorted(passes.outputs)]


def pipeline_bytes(schedule: PipelineSchedule, rank: int, hidden: HiddenStates) -> int:
    """Return the bytes that a rank sends: each micro-batch once forward from each of its chunks but the
    model's last, and once backward from each but the first."""
    if schedule.ranks == 1:
        return 0
    sent_shapes = [
        hidden.shapes[message.needed_by.micro_batch] for message in schedule.messages(rank)
    ]
    return sum(prod(shape) for shape in sent_shapes) * hidden.dtype.itemsize


class _Passes:
    """Runs steps, and keeps the tensors of forward passes that backward passes need."""

    def __init__(
        self, schedule: PipelineSchedule, chunks: Sequence[Chunk], channel: "_PipelineChannel"
    ) -> None:
        self.outputs: dict[int, Tensor] = {}
        self._schedule, self._chunks, self._channel = schedule, chunks, channel
        self._activations: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}

    def forward(self, step: PipelineStep) -> None:
        """Run a micro-batch through a chunk; send its output to the next stage, or keep the last stage's
        in `outputs`."""
        input_hidden = None
        if step.stage > 0:
            input_hidden = self._channel.receive(step).requires_grad_(self._schedule.trains)
        output = self._chunks[step.stage // self._schedule.ranks](step.micro_batch, input_hidden)
        if self._schedule.trains:
            self._activations[step.stage, step.micro_batch] = input_hidden, output
        if step.stage < self._schedule.stages - 1:
            self._channel.send(
                PipelineStep("forward", step.stage + 1, step.micro_batch), output.detach()
            )
        else:
            self.outputs[step.micro_batch] = output.detach()

    def backward(self, step: PipelineStep) -> None:
        """Run a forward pass backward, from the next stage's gradient or the loss, and send the input's
        gradient to the previous stage."""
        input_hidden, output = self._activations.pop((step.stage, step.micro_batch))
        if step.stage < self._schedule.stages - 1:
            output = _BackwardFrom.apply(output, self._channel.receive(step))  # type: ignore[no-untyped-call]
        output.backward()  # type: ignore[no-untyped-call]
        if input_hidden is not None:
            input_gradient = (
                torch.zeros_like(input_hidden) if input_hidden.grad is None else input_hidden.grad
            )
            self._channel.send(
                PipelineStep("backward", step.stage - 1, step.micro_batch), input_gradient
            )


class _BackwardFrom(torch.autograd.Function):
    """A scalar whose backward pass sends a gradient into a tensor. torch's `backward(gradient)` imports its
    compiler, which takes seconds in every process."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


class _PipelineChannel:
    """Sends tensors to the other ranks of a pipeline and receives theirs, by the step that needs them."""

    def __init__(
        self, schedule: PipelineSchedule, hidden: HiddenStates, group: ProcessGroup | None
    ) -> None:
        self._rank, self._hidden, self._group = rank_of(group), hidden, group
        self._ranks = schedule.ranks
        self._expected = {
            source: deque(m for m in schedule.messages(source) if m.target == self._rank)
            for source in range(schedule.ranks)
            if source != self._rank
        }
        self._receiving: dict[int, tuple[PipelineMessage, Pending]] = {}
        self._arrived: dict[PipelineStep, Tensor] = {}
        self._sends: list[Pending] = []
        for source in self._expected:
            self._start_receiving(source)

    def send(self, needed_by: PipelineStep, tensor: Tensor) -> None:
        """Send a tensor to the rank that runs the step, which may be this one."""
        target = needed_by.stage % self._ranks
        if target == self._rank:
            self._arrived[needed_by] = tensor
            return
        self._sends = [send for send in self._sends if not send.done()]
        with self._error_context(f"rank {target} does not take", needed_by):
            self._sends.append(start_send(tensor, target, self._group))

    def receive(self, step: PipelineStep) -> Tensor:
        """Return the tensor that the step needs."""
        while step not in self._arrived:
            previous_stage = step.stage + (-1 if step.direction == "forward" else 1)
            source = previous_stage % self._ranks
            message, pending = self._receiving.pop(source)
            self._start_receiving(source)
            with self._error_context(f"rank {source} has not sent", message.needed_by):
                self._arrived[message.needed_by] = pending.wait()
        return self._arrived.pop(step)

    def close(self) -> None:
        """Wait until the other ranks have received every tensor that was sent."""
        for send in self._sends:
            with self._error_context("another rank does not take", None):
                send.wait()

    def _start_receiving(self, source: int) -> None:
        if self._expected[source]:
            message = self._expected[source].popleft()
            buffer = self._hidden.empty(message.needed_by.micro_batch)
            with self._error_context(f"rank {source} will not send", message.needed_by):
                self._receiving[source] = message, start_receive(buffer, source, self._group)

    @contextmanager
    def _error_context(self, problem: str, step: PipelineStep | None) -> Iterator[None]:
        """Add to an error the ranks and the micro-batch that a wait concerns."""
        subject = (
            f"micro-batch {step.micro_batch} {step.direction} for stage {step.stage}"
            if step
            else "all"
        )
        try:
            yield
        except RuntimeError as error:
            raise WorkerError(
                f"pipeline rank {self._rank}: {problem} {subject}: {error}"
            ) from error
