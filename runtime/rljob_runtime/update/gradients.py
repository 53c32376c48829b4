"""Sum gradients over data parallel ranks, bucket by bucket, while the backward pass continues.

The update engine uses `WholeGradients` if every rank keeps all of them (ZeRO 0 and 1), and
`ScatteredGradients` if each keeps only its shard (ZeRO 2). Buckets are sent in the same order on all ranks,
whatever order gradients arrive in; those of unused parameters are sent as zeros.
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


class GradientArrivals:
    """Detects when all gradients of a bucket have arrived, in the buckets' order.

    ready: called once per bucket and pass. took: called with each parameter that received its gradient.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        buckets: Sequence[Bucket],
        *,
        ready: Callable[[int], None],
        took: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._buckets, self._ready, self._took = buckets, ready, took
        self._bucket_of = {p.name: i for i, bucket in enumerate(buckets) for p in bucket.slices}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, name=name: self._arrive(name)
            )
            for name, parameter in parameters.items()
        ]
        self._begin()

    def end_pass(self) -> None:
        """End the backward pass: the remaining buckets receive no more gradients and are ready."""
        for index in range(self._next, len(self._buckets)):
            self._ready(index)
        self._begin()

    def remove(self) -> None:
        """Remove the hooks that report gradients."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self) -> None:
        self._next = 0
        self._missing = [len(bucket.slices) for bucket in self._buckets]

    def _arrive(self, name: str) -> None:
        self._took(name)
        self._missing[self._bucket_of[name]] -= 1
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._ready(self._next)
            self._next += 1


class GradientShards:
    """This rank's shard of the summed gradients of each bucket; lives for one optimizer step.

    copies: number of ranks that keep the same shard.
    """

    def __init__(self, tensors: list[Tensor], *, copies: int = 1) -> None:
        self.tensors = tensors
        self.copies = copies

    def multiply(self, by: float) -> None:
        """Multiply all gradients by a factor."""
        for tensor in self.tensors:
            tensor.mul_(by)

    def square(self) -> Tensor:
        """Return this rank's share of the squared norm, one number [1]."""
        norms = torch.stack([torch.linalg.vector_norm(tensor) for tensor in self.tensors])
        return norms.square().sum()[None] / self.copies


def clip_gradients(
    models_shards: Sequence[GradientShards], limit: float, group: ProcessGroup | None
) -> float:
    """Scale a model's gradients down to norm `limit` if they exceed it; returns the norm before.

    models_shards: of all parameters of this rank, whichever group summed them. group: all ranks of the model
    and of its replicas. Communicates one sum of one number.
    """
    square = torch.cat([shards.square() for shards in models_shards]).sum()[None]
    sum_over_ranks(square, group)
    norm = math.sqrt(float(square))
    if norm > limit:
        for shards in models_shards:
            shards.multiply(limit / norm)
    return norm


class WholeGradients:
    """Flat buffers with every parameter's `grad` as a view; autograd adds micro-batches up in place."""

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
            for bucket_slice in bucket.slices:
                parameter = parameters[bucket_slice.name]
                parameter.grad = flat[bucket_slice.offset :][: bucket_slice.stop].view_as(parameter)

    def sum_over_ranks(self, backward: Callable[[], None] = lambda: None) -> GradientShards:
        """Sum the gradients over the ranks, in place: their bytes in one sum. Every rank then has all of
        them.

        backward: the last micro-batch's backward pass, which overlaps with the sum.
        """
        started: list[Pending] = []

        def start(index: int) -> None:
            started.append(start_sum(self._flats[index], self._group))

        arrivals = GradientArrivals(self._parameters, self._buckets, ready=start)
        try:
            backward()
            arrivals.end_pass()
        finally:
            arrivals.remove()
            for pending in started:
                pending.wait()
        return GradientShards(self._flats, copies=size_of(self._group))

    def scatter(self) -> GradientShards:
        """Reduce-scatter the gradients: each rank gets the sum of its shard, with half the bytes of a sum.

        The other shards are invalid afterwards.
        """
        rank = rank_of(self._group)
        started = [
            start_scatter_sum(flat, self._group, into=flat[bucket.slice_of(rank)])
            for bucket, flat in zip(self._buckets, self._flats, strict=True)
        ]
        self.shards.tensors = [pending.wait() for pending in started]
        return self.shards

    def free(self) -> None:
        """Drop the buffers, the shards and the parameters' gradients."""
        self._flats = []
        self.shards.tensors = []
        for parameter in self._parameters.values():
            parameter.grad = None


class ScatteredGradients:
    """Receives each gradient when it is computed, and keeps this rank's shard of the sum.

    Only two buckets of full gradients exist at a time: one that fills and one that is being sent. All ranks
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
        self._offsets = {p.name: (i, p.offset) for i, b in enumerate(buckets) for p in b.slices}
        tensors = [_zeros(bucket.items // bucket.ranks, parameters, ledger) for bucket in buckets]
        self.shards = GradientShards(tensors)
        self._filling: dict[int, Tensor] = {}
        self._under_way: tuple[int, Pending] | None = None
        self._arrivals = GradientArrivals(parameters, buckets, ready=self._send, took=self._take)

    def end_pass(self) -> None:
        """End a backward pass: its gradients are in the shards. Bytes of half a sum."""
        self._arrivals.end_pass()
        self._receive()

    def free(self) -> None:
        """Drop the shards and remove the hooks."""
        self._arrivals.remove()
        self.shards.tensors = []

    def _take(self, name: str) -> None:
        parameter, (index, offset) = self._parameters[name], self._offsets[name]
        assert parameter.grad is not None, f"{name} told of a gradient and has none"
        flat = self._bucket(index)
        flat[offset : offset + parameter.numel()] = parameter.grad.view(-1)
        parameter.grad = None

    def _bucket(self, index: int) -> Tensor:
        if index not in self._filling:
            items = self._buckets[index].items
            self._filling[index] = _zeros(items, self._parameters, self._ledger)
        return self._filling[index]

    def _send(self, index: int) -> None:
        self._receive()
        flat = self._bucket(index)
        local = flat[self._buckets[index].slice_of(rank_of(self._group))]
        self._under_way = index, start_scatter_sum(flat, self._group, into=local)
        del self._filling[index]

    def _receive(self) -> None:
        if self._under_way is not None:
            index, pending = self._under_way
            self.shards.tensors[index] += pending.wait()
            self._under_way = None


def _zeros(items: int, parameters: Mapping[str, Tensor], ledger: MemoryLedger) -> Tensor:
    first = next(iter(parameters.values()))
    dtype = main_dtype(first)
    ledger.require(MemoryKind.GRADIENTS, items * dtype.itemsize)
    zeros = torch.zeros(items, dtype=dtype, device=first.device)
    ledger.track(MemoryKind.GRADIENTS, [zeros])
    return zeros
