"""Log-probs of tokens from hidden states without materializing all logits: the output head of decoders.

Called at a decoder's end, for a vocabulary on one rank or sharded over several. Logits are computed for a
chunk of positions at a time, in one buffer. Backward starts with the last chunk, which is still in the
buffer, and recomputes the others. One form for all devices.
"""

# L positions, T targets (several may share a position), H hidden, V ids whose rows are local
# C positions of a chunk and t targets in it, R positions of a tile

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.linear import autograd_gradient, gradient_sum
from rljob_runtime.devices.kernels.matmul_add import matmul_add_

CHUNK_LOGITS = 1 << 25
"""Number of float32 logits in a chunk: 128 MiB."""
NO_LOGIT = -1e30
"""Logit of an id that is never sampled: finite, so that sums exist on a rank with only such ids."""
CACHED = 1 << 18
"""Number of logits in a tile on CPU: 1 MiB, which stays in a core's cache between passes."""


class SharedIds(Protocol):
    """The ids whose rows a rank has, where ranks share a vocabulary, and the reductions over these ranks."""

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the local row of each id, 0 for another rank's, and whether the id is local."""
        ...

    def take_largest(self, values: Tensor) -> None:
        """Replace values [n] by the ranks' largest, in place."""
        ...

    def take_sum(self, values: Tensor) -> None:
        """Replace values [n] by the ranks' sum, in place."""
        ...


def linear_logprobs(
    hidden_LH: Tensor,
    weight_VH: Tensor,
    target_T: Tensor,
    row_of_T: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    ids: SharedIds | None = None,
    rows: int | None = None,
    logits_at_once: int = CHUNK_LOGITS,
) -> tuple[Tensor, Tensor | None]:
    """Return log softmax(hidden weightᵀ / temperature) of each target [T] and, with `with_entropy`, the
    entropy of that distribution in nats [T]. Both have gradients, in float32 or wider for any dtype of the
    inputs.

    row_of_T: index into L of the position that predicts each target. rows: number of leading rows of
    weight_VH whose ids may be sampled; None: all. Where ranks share the vocabulary, all pass the same
    arguments except weight_VH and get the same result; hidden_LH's gradient is this rank's summand of a sum
    over them. Memory beside the gradients: logits_at_once values, kept until backward, and some numbers per
    position.
    """
    order_T = torch.argsort(row_of_T, stable=True)
    settings = _Settings(
        temperature=temperature,
        with_entropy=with_entropy,
        ids=ids,
        rows=len(weight_VH) if rows is None else rows,
        chunk=max(1, logits_at_once // len(weight_VH)),
        tile=max(1, (CACHED if hidden_LH.is_cpu else logits_at_once // 8) // len(weight_VH)),
        trains=torch.is_grad_enabled() and (hidden_LH.requires_grad or weight_VH.requires_grad),
    )
    logprobs_T, entropy_L = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_LH, weight_VH, target_T[order_T], row_of_T[order_T], settings
    )
    entropy_T = entropy_L.index_select(0, row_of_T) if with_entropy else None
    return logprobs_T.index_select(0, torch.argsort(order_T)), entropy_T


def linear_logprobs_reference(
    hidden_LH: Tensor,
    weight_VH: Tensor,
    target_T: Tensor,
    row_of_T: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute `linear_logprobs` in plain torch, with all logits."""
    all_TV = (F.linear(hidden_LH.float(), weight_VH.float()) / temperature).log_softmax(-1)[
        row_of_T
    ]
    logprobs_T = all_TV.gather(1, target_T[:, None])[:, 0]
    return logprobs_T, -(all_TV.exp() * all_TV).sum(-1) if with_entropy else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Arguments of the computation. chunk, tile: maximum positions of each. trains: a backward pass may
    follow."""

    temperature: float
    with_entropy: bool
    ids: SharedIds | None
    rows: int
    chunk: int
    tile: int
    trains: bool


@dataclass(frozen=True, slots=True)
class _Sums:
    """Statistics over a rank's ids, or over all ids. Each position has its largest logit and, with that
    subtracted from logits, the sums over ids of exponentials and of exponentials times logits. logit_T: each
    target's logit less the largest, 0 for other ranks' targets."""

    largest_L: Tensor
    sum_L: Tensor
    weighted_L: Tensor
    logit_T: Tensor


class _LinearLogprobs(torch.autograd.Function):
    """Computes log-probs in chunks. row_of_T is ascending, so that a chunk of positions has a range of
    targets."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_LH: Tensor,
        weight_VH: Tensor,
        target_T: Tensor,
        row_of_T: Tensor,
        settings: _Settings,
    ) -> tuple[Tensor, Tensor]:
        ids = settings.ids
        local_id_T, is_local_T = (target_T, None) if ids is None else ids.places(target_T)
        chunks = _chunks(row_of_T, len(hidden_LH), settings.chunk)
        local_sums, last_CV = _sum_chunks(
            hidden_LH, weight_VH, local_id_T, row_of_T, chunks, settings
        )
        sums, offset_L = _over_ranks(local_sums, row_of_T, is_local_T, ids)
        log_sum_L = sums.sum_L.log()
        entropy_L = log_sum_L - sums.weighted_L / sums.sum_L
        if settings.trains:
            statistics = (local_sums.largest_L, log_sum_L - offset_L, entropy_L)
            ctx.save_for_backward(hidden_LH, local_id_T, is_local_T, row_of_T, *statistics)
            ctx.weight = weight_VH  # not saved: `gradient_sum` needs the parameter
            ctx.settings, ctx.chunks, ctx.last_CV = settings, chunks, last_CV
        ctx.set_materialize_grads(False)
        return sums.logit_T - log_sum_L[row_of_T], entropy_L

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_LH, local_id_T, is_local_T, row_of_T, largest_L, shift_L, entropy_L = (
            ctx.saved_tensors
        )
        weight_VH, settings = ctx.weight, ctx.settings
        target_gradient_T, entropy_gradient_L = gradients
        if target_gradient_T is None:
            target_gradient_T = shift_L.new_zeros(len(row_of_T))
        total_L = torch.zeros_like(shift_L).index_add_(0, row_of_T, target_gradient_T)
        if is_local_T is not None:
            target_gradient_T = target_gradient_T.masked_fill(~is_local_T, 0.0)
        last_CV, ctx.last_CV = ctx.last_CV, None  # overwritten: a second backward recomputes it
        buffer_CV = _buffer(hidden_LH, weight_VH, settings) if last_CV is None else last_CV
        hidden_gradient_LH = torch.empty_like(hidden_LH)
        trains = ctx.needs_input_grad[1]  # False where only adapters are trained
        weight_gradient_VH = gradient_sum(weight_VH) if trains else None
        for positions, targets in reversed(ctx.chunks):
            hidden_CH, gradient_CV = hidden_LH[positions], last_CV
            if gradient_CV is None:
                gradient_CV = _logits(hidden_CH, weight_VH, settings, buffer_CV)
                gradient_CV.sub_(largest_L[positions, None])
            gradient_CV, last_CV = gradient_CV[: len(hidden_CH)], None
            for tile, rows in _tiles(positions, settings.tile):
                entropy = (
                    None
                    if entropy_gradient_L is None
                    else (entropy_gradient_L[tile], entropy_L[tile])
                )
                gradient_RV = gradient_CV[rows].sub_(shift_L[tile, None])
                _to_gradient_(gradient_RV, total_L[tile], entropy)
            target_index_t = (row_of_T[targets] - positions.start, local_id_T[targets])
            gradient_CV.index_put_(target_index_t, target_gradient_T[targets], accumulate=True)
            if settings.temperature != 1.0:
                gradient_CV.div_(settings.temperature)
            hidden_gradient_LH[positions] = gradient_CV.to(weight_VH.dtype) @ weight_VH
            if weight_gradient_VH is not None:
                matmul_add_(weight_gradient_VH, gradient_CV, hidden_CH)
        weight_result = (
            None if weight_gradient_VH is None else autograd_gradient(weight_VH, weight_gradient_VH)
        )
        return hidden_gradient_LH, weight_result, None, None, None


def _sum_chunks(
    hidden_LH: Tensor,
    weight_VH: Tensor,
    local_id_T: Tensor,
    row_of_T: Tensor,
    chunks: list[tuple[slice, slice]],
    settings: _Settings,
) -> tuple[_Sums, Tensor | None]:
    """Return this rank's sums and, if it trains, the last chunk's logits less each position's largest."""
    buffer_CV = _buffer(hidden_LH, weight_VH, settings)
    scratch_RV = buffer_CV.new_empty(min(settings.tile, len(buffer_CV)), len(weight_VH))
    largest_L, sum_L, weighted_L = buffer_CV.new_zeros(3, len(hidden_LH))
    logit_T = buffer_CV.new_empty(len(row_of_T))
    for positions, targets in chunks:
        logits_CV = _logits(hidden_LH[positions], weight_VH, settings, buffer_CV)
        for tile, rows in _tiles(positions, settings.tile):
            logits_RV = logits_CV[rows]
            torch.amax(logits_RV, -1, out=largest_L[tile])
            logits_RV.sub_(largest_L[tile, None])  # avoids cancellation later
            powers_RV = torch.exp(logits_RV, out=scratch_RV[: len(logits_RV)])
            torch.sum(powers_RV, -1, out=sum_L[tile])
            if settings.with_entropy:
                torch.sum(powers_RV.mul_(logits_RV), -1, out=weighted_L[tile])
        logit_T[targets] = logits_CV[row_of_T[targets] - positions.start, local_id_T[targets]]
    return _Sums(largest_L, sum_L, weighted_L, logit_T), buffer_CV if settings.trains else None


def _over_ranks(
    local_sums: _Sums, row_of_T: Tensor, is_local_T: Tensor | None, ids: SharedIds | None
) -> tuple[_Sums, Tensor]:
    """Return the sums of all ranks, and this rank's largest logits less the largest of all ranks [L], at most
    0."""
    if ids is None or is_local_T is None:
        return local_sums, torch.zeros_like(local_sums.largest_L)
    largest_L = local_sums.largest_L.clone()
    ids.take_largest(largest_L)
    offset_L = local_sums.largest_L - largest_L
    scale_L = offset_L.exp()
    weighted_L = (local_sums.weighted_L + offset_L * local_sums.sum_L) * scale_L
    logit_T = (local_sums.logit_T + offset_L[row_of_T]).masked_fill(~is_local_T, 0.0)
    sums = torch.cat([local_sums.sum_L * scale_L, weighted_L, logit_T])
    ids.take_sum(sums)
    return _Sums(largest_L, *torch.split(sums, [*[len(offset_L)] * 2, len(logit_T)])), offset_L


def _to_gradient_(
    logprobs_RV: Tensor, total_R: Tensor, entropy: tuple[Tensor, Tensor] | None
) -> None:
    """Replace log-probs by the gradient of logits without the targets' terms, -(total + g (log p + H)) p, in
    place.

    total_R: sum of the gradients of a position's log-probs. entropy: its gradient g, and the entropy H.
    """
    if entropy is None:
        logprobs_RV.exp_().mul_(-total_R[:, None])
        return
    gradient_R, entropy_R = entropy
    probabilities_RV = logprobs_RV.exp()
    logprobs_RV.add_(entropy_R[:, None]).mul_(-gradient_R[:, None]).sub_(total_R[:, None])
    logprobs_RV.mul_(probabilities_RV)


def _logits(hidden_CH: Tensor, weight_VH: Tensor, settings: _Settings, buffer_CV: Tensor) -> Tensor:
    """Compute a chunk's logits in the buffer's first rows and dtype."""
    logits_CV = buffer_CV[: len(hidden_CH)]
    if hidden_CH.dtype == logits_CV.dtype:
        torch.mm(hidden_CH, weight_VH.t(), out=logits_CV)
    else:
        logits_CV.copy_(F.linear(hidden_CH, weight_VH))
    if settings.temperature != 1.0:
        logits_CV.div_(settings.temperature)
    logits_CV[:, settings.rows :] = NO_LOGIT
    return logits_CV


def _buffer(hidden_LH: Tensor, weight_VH: Tensor, settings: _Settings) -> Tensor:
    dtype = torch.promote_types(hidden_LH.dtype, torch.float32)
    rows = min(settings.chunk, len(hidden_LH))
    return hidden_LH.new_empty(rows, len(weight_VH), dtype=dtype)


def _chunks(row_of_T: Tensor, num_rows: int, rows: int) -> list[tuple[slice, slice]]:
    """Return ranges of at most `rows` positions, and the ranges of the targets that they predict."""
    bounds = [*range(0, num_rows, rows), num_rows]
    cuts = torch.searchsorted(row_of_T, torch.tensor(bounds, device=row_of_T.device)).tolist()
    return [
        (slice(first, last), slice(low, high))
        for first, last, low, high in zip(bounds, bounds[1:], cuts, cuts[1:], strict=False)
    ]


def _tiles(positions: slice, rows: int) -> Iterator[tuple[slice, slice]]:
    """Yield tiles of positions, and their rows in the chunk."""
    for first in range(positions.start, positions.stop, rows):
        tile = slice(first, min(first + rows, positions.stop))
        yield tile, slice(tile.start - positions.start, tile.stop - positions.start)
