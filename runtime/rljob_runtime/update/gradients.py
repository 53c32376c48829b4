"""Gradients added up over data parallel ranks, bucket by bucket, while the backward pass goes on.

Called by the update engine: `WholeGradients` where every rank keeps all of them (ZeRO 0 and 1),
`ScatteredGradients` where each keeps its part alone (ZeRO 2). Buckets go out in one order on all ranks,
whatever order gradients come in, and those of unused parameters go out as zeros.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import rank_of, size_of, sum_over_ranks
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.devices.wire import Pending, start_scatter_sum, start_sum
from rljob_runtime.update.buckets import Bucket
from rljob_runtime.update.precision import main_dtype, widen_gradients


class Arrivals:
    """Says when all gradients of a bucket are there, in the buckets' order. ready: called once a bucket
    and pass. took: called with each parameter that has got its gradient."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        buckets: Sequence[Bucket],
        *,
        ready: Callable[[int], None],
        took: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._buckets, self._ready, self._took = buckets, ready, took
        self._bucket_of = {p.name: i for i, bucket in enumerate(buckets) for p in bucket.pieces}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, name=name: self._arrive(name)
            )
            for name, parameter in parameters.items()
        ]
        self._begin()

    def end_pass(self) -> None:
        """The backward pass is over: the rest of the buckets is as ready as it will be."""
        for index in range(self._next, len(self._buckets)):
            self._ready(index)
        self._begin()

    def remove(self) -> None:
        """Hear of no more gradients."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self) -> None:
        self._next = 0
        self._missing = [len(bucket.pieces) for bucket in self._buckets]

    def _arrive(self, name: str) -> None:
        self._took(name)
        self._missing[self._bucket_of[name]] -= 1
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._ready(self._next)
            self._next += 1


class GradientShards:
    """What this rank keeps of the summed gradients of each bucket; lives for one optimizer step.

    copies: ranks that keep the same.
    """

    def __init__(self, parts: list[Tensor], *, copies: int = 1) -> None:
        self.parts = parts
        self.copies = copies

    def multiply(self, by: float) -> None:
        """Multiply all gradients."""
        for part in self.parts:
            part.mul_(by)

    def square(self) -> Tensor:
        """This rank's share of the squared norm, one number [1]."""
        norms = torch.stack([torch.linalg.vector_norm(part) for part in self.parts])
        return norms.square().sum()[None] / self.copies


def clip_gradients(
    kept: Sequence[GradientShards], limit: float, group: ProcessGroup | None
) -> float:
    """Scale a model's gradients down to norm `limit` if they exceed it; returns the norm before.

    kept: of all parameters of this rank, whoever added them up. group: all ranks of the model and of its
    replicas. One sum of one number.
    """
    square = torch.cat([shards.square() for shards in kept]).sum()[None]
    sum_over_ranks(square, group)
    norm = math.sqrt(float(square))
    if norm > limit:
        for shards in kept:
            shards.multiply(limit / norm)
    return norm


class WholeGradients:
    """Zeros, and every parameter's `grad` is a view of them; autograd adds up micro-batches in place."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        buckets: Sequence[Bucket],
        group: ProcessGroup | None,
        ledger: MemoryLedger,
    ) -> None:
        self._parameters, self._buckets, self._group = dict(parameters), buckets, group
        widen_gradients(parameters)
        self.shards = GradientShards([])
        self._flats = [_zeros(bucket.items, parameters, ledger) for bucket in buckets]
        for bucket, flat in zip(buckets, self._flats, strict=True):
            for piece in bucket.pieces:
                parameter = parameters[piece.name]
                parameter.grad = flat[piece.place :][: piece.stop].view_as(parameter)

    def sum_over_ranks(self, backward: Callable[[], None] = lambda: None) -> GradientShards:
        """Add the gradients up over the ranks, in place: their bytes in one sum. Every rank has all of
        them afterwards. backward: the last micro-batch's backward pass, which goes on meanwhile."""
        started: list[Pending] = []

        def start(index: int) -> None:
            started.append(start_sum(self._flats[index], self._group))

        arrivals = Arrivals(self._parameters, self._buckets, ready=start)
        try:
            backward()
            arrivals.end_pass()
        finally:
            arrivals.remove()
            for pending in started:
                pending.wait()
        return GradientShards(self._flats, copies=size_of(self._group))

    def scatter(self) -> GradientShards:
        """Add the gradients up over the ranks, each in its own part alone: half the bytes of a sum. The
        other parts are of no use afterwards."""
        rank = rank_of(self._group)
        started = [
            start_scatter_sum(flat, self._group, into=flat[bucket.slice_of(rank)])
            for bucket, flat in zip(self._buckets, self._flats, strict=True)
        ]
        self.shards.parts = [pending.wait() for pending in started]
        return self.shards

    def free(self) -> None:
        """Drop the buffers, the parts and the parameters' gradients."""
        self._flats = []
        self.shards.parts = []
        for parameter in self._parameters.values():
            parameter.grad = None


class ScatteredGradients:
    """Takes each gradient as it comes, and keeps this rank's part of the sum.

    Of the whole gradients two buckets exist at a time: one that fills and one that is under way. All ranks
    run equally many backward passes, each followed by `end_pass`.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        buckets: Sequence[Bucket],
        group: ProcessGroup | None,
        ledger: MemoryLedger,
    ) -> None:
        self._parameters, self._buckets, self._group = dict(parameters), buckets, group
        self._ledger = ledger
        widen_gradients(parameters)
        self._places = {p.name: (i, p.place) for i, b in enumerate(buckets) for p in b.pieces}
        parts = [_zeros(bucket.items // bucket.ranks, parameters, ledger) for bucket in buckets]
        self.shards = GradientShards(parts)
        self._filling: dict[int, Tensor] = {}
        self._under_way: tuple[int, Pending] | None = None
        self._arrivals = Arrivals(parameters, buckets, ready=self._send, took=self._take)

    def end_pass(self) -> None:
        """A backward pass is over: its gradients are in the parts. Bytes of half a sum."""
        self._arrivals.end_pass()
        self._receive()

    def free(self) -> None:
        """Drop the parts, and hear of no more gradients."""
        self._arrivals.remove()
        self.shards.parts = []

    def _take(self, name: str) -> None:
        parameter, (index, place) = self._parameters[name], self._places[name]
        assert parameter.grad is not None, f"{name} told of a gradient and has none"
        flat = self._bucket(index)
        flat[place : place + parameter.numel()] = parameter.grad.view(-1)
        parameter.grad = None

    def _bucket(self, index: int) -> Tensor:
        if index not in self._filling:
            items = self._buckets[index].items
            self._filling[index] = _zeros(items, self._parameters, self._ledger)
        return self._filling[index]

    def _send(self, index: int) -> None:
        self._receive()
        flat = self._bucket(index)
        own = flat[self._buckets[index].slice_of(rank_of(self._group))]
        self._under_way = index, start_scatter_sum(flat, self._group, into=own)
        del self._filling[index]

    def _receive(self) -> None:
        if self._under_way is not None:
            index, pending = self._under_way
            self.shards.parts[index] += pending.wait()
            self._under_way = None


def _zeros(items: int, parameters: Mapping[str, Tensor], ledger: MemoryLedger) -> Tensor:
    first = next(iter(parameters.values()))
    dtype = main_dtype(first)
    ledger.require(MemoryKind.GRADIENTS, items * dtype.itemsize)
    zeros = torch.zeros(items, dtype=dtype, device=first.device)
    ledger.track(MemoryKind.GRADIENTS, [zeros])
    return zeros
