"""Log-probs of tokens from hidden states without ever holding all logits: the output head of decoders.

Called by a decoder's end, where one rank has the vocabulary and where several share it. Logits are made a
chunk of positions at a time, in one buffer; backward begins with the last chunk, which is still there, and
makes the others again. One form for all devices.
"""

# L positions, T targets (several may share a position), H hidden, V ids whose rows are here
# C positions of a chunk and t targets there, R positions of a tile

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.linear import gradient_sum, returned
from rljob_runtime.devices.kernels.matmul_add import matmul_add_

LOGITS_AT_ONCE = 1 << 25
"""float32 values of a chunk: 128 MiB."""
NO_LOGIT = -1e30
"""Of an id that is never drawn: finite, so that a rank all of whose ids are such has sums, too."""
CACHED = 1 << 18
"""Values of a tile on CPU: 1 MiB, which stays in a core's cache from one pass to the next."""


class SharedIds(Protocol):
    """The ids whose rows a rank holds, where ranks share a vocabulary, and what they tell each other."""

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Row of each id among this rank's, 0 for another rank's, and whether it is this rank's."""
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
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden weightᵀ / temperature) of each target [T] and, if asked for, the entropy of that
    distribution in nats [T]; both with gradients, in float32 at least whatever the dtype of the inputs.

    row_of_T: index into L of what predicts each target. rows: of weight_VH whose ids may be drawn, the first
    ones; None: all. Where ranks share the vocabulary, all give the
    same but for weight_VH, get the same, and hidden_LH's gradient is this rank's part of a sum over them.
    Memory beside the gradients: logits_at_once values, kept until backward, and some numbers a position.
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
    """`linear_logprobs` in plain torch, with all logits."""
    all_TV = (F.linear(hidden_LH.float(), weight_VH.float()) / temperature).log_softmax(-1)[
        row_of_T
    ]
    logprobs_T = all_TV.gather(1, target_T[:, None])[:, 0]
    return logprobs_T, -(all_TV.exp() * all_TV).sum(-1) if with_entropy else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """rows: as given. chunk, tile: most positions of one. trains: a backward pass may follow."""

    temperature: float
    with_entropy: bool
    ids: SharedIds | None
    rows: int
    chunk: int
    tile: int
    trains: bool


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of a rank's ids, and then of all: each position's largest logit, and sums over ids of exponentials, and
    of these times logits, less the largest; each target's logit less it, 0 for other ranks' targets."""

    largest_L: Tensor
    sum_L: Tensor
    weighted_L: Tensor
    logit_T: Tensor


class _LinearLogprobs(torch.autograd.Function):
    """row_of_T is ascending, so that a chunk of positions has a range of targets."""

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
        place_T, own_T = (target_T, None) if ids is None else ids.places(target_T)
        chunks = _chunks(row_of_T, len(hidden_LH), settings.chunk)
        own, last_CV = _sum_chunks(hidden_LH, weight_VH, place_T, row_of_T, chunks, settings)
        sums, apart_L = _over_ranks(own, row_of_T, own_T, ids)
        log_sum_L = sums.sum_L.log()
        entropy_L = log_sum_L - sums.weighted_L / sums.sum_L
        if settings.trains:
            numbers = (own.largest_L, log_sum_L - apart_L, entropy_L)
            ctx.save_for_backward(hidden_LH, place_T, own_T, row_of_T, *numbers)
            ctx.weight = weight_VH  # not saved: `gradient_sum` needs the parameter
            ctx.settings, ctx.chunks, ctx.last_CV = settings, chunks, last_CV
        ctx.set_materialize_grads(False)
        return sums.logit_T - log_sum_L[row_of_T], entropy_L

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_LH, place_T, own_T, row_of_T, largest_L, shift_L, entropy_L = ctx.saved_tensors
        weight_VH, settings = ctx.weight, ctx.settings
        of_targets_T, of_entropy_L = gradients
        if of_targets_T is None:
            of_targets_T = shift_L.new_zeros(len(row_of_T))
        total_L = torch.zeros_like(shift_L).index_add_(0, row_of_T, of_targets_T)
        if own_T is not None:
            of_targets_T = of_targets_T.masked_fill(~own_T, 0.0)
        last_CV, ctx.last_CV = ctx.last_CV, None  # overwritten: a second backward makes it again
        buffer_CV = _buffer(hidden_LH, weight_VH, settings) if last_CV is None else last_CV
        hidden_gradient_LH = torch.empty_like(hidden_LH)
        trains = ctx.needs_input_grad[1]  # not where adapters alone are trained
        weight_gradient_VH = gradient_sum(weight_VH) if trains else None
        for positions, targets in reversed(ctx.chunks):
            hidden_CH, gradient_CV = hidden_LH[positions], last_CV
            if gradient_CV is None:
                gradient_CV = _logits(hidden_CH, weight_VH, settings, buffer_CV)
                gradient_CV.sub_(largest_L[positions, None])
            gradient_CV, last_CV = gradient_CV[: len(hidden_CH)], None
            for tile, rows in _tiles(positions, settings.tile):
                entropy = None if of_entropy_L is None else (of_entropy_L[tile], entropy_L[tile])
                gradient_RV = gradient_CV[rows].sub_(shift_L[tile, None])
                _to_gradient_(gradient_RV, total_L[tile], entropy)
            place_t = (row_of_T[targets] - positions.start, place_T[targets])
            gradient_CV.index_put_(place_t, of_targets_T[targets], accumulate=True)
            if settings.temperature != 1.0:
                gradient_CV.div_(settings.temperature)
            hidden_gradient_LH[positions] = gradient_CV.to(weight_VH.dtype) @ weight_VH
            if weight_gradient_VH is not None:
                matmul_add_(weight_gradient_VH, gradient_CV, hidden_CH)
        given = None if weight_gradient_VH is None else returned(weight_VH, weight_gradient_VH)
        return hidden_gradient_LH, given, None, None, None


def _sum_chunks(
    hidden_LH: Tensor,
    weight_VH: Tensor,
    place_T: Tensor,
    row_of_T: Tensor,
    chunks: list[tuple[slice, slice]],
    settings: _Settings,
) -> tuple[_Sums, Tensor | None]:
    """This rank's sums, and where it trains the last chunk's logits less each position's largest."""
    buffer_CV = _buffer(hidden_LH, weight_VH, settings)
    scratch_RV = buffer_CV.new_empty(min(settings.tile, len(buffer_CV)), len(weight_VH))
    largest_L, sum_L, weighted_L = buffer_CV.new_zeros(3, len(hidden_LH))
    logit_T = buffer_CV.new_empty(len(row_of_T))
    for positions, targets in chunks:
        logits_CV = _logits(hidden_LH[positions], weight_VH, settings, buffer_CV)
        for tile, rows in _tiles(positions, settings.tile):
            logits_RV = logits_CV[rows]
            torch.amax(logits_RV, -1, out=largest_L[tile])
            logits_RV.sub_(largest_L[tile, None])  # what is left does not cancel
            powers_RV = torch.exp(logits_RV, out=scratch_RV[: len(logits_RV)])
            torch.sum(powers_RV, -1, out=sum_L[tile])
            if settings.with_entropy:
                torch.sum(powers_RV.mul_(logits_RV), -1, out=weighted_L[tile])
        logit_T[targets] = logits_CV[row_of_T[targets] - positions.start, place_T[targets]]
    return _Sums(largest_L, sum_L, weighted_L, logit_T), buffer_CV if settings.trains else None


def _over_ranks(
    own: _Sums, row_of_T: Tensor, own_T: Tensor | None, ids: SharedIds | None
) -> tuple[_Sums, Tensor]:
    """The sums of all ranks, and how far this rank's largest logits are from theirs [L], at most 0."""
    if ids is None or own_T is None:
        return own, torch.zeros_like(own.largest_L)
    largest_L = own.largest_L.clone()
    ids.take_largest(largest_L)
    apart_L = own.largest_L - largest_L
    scale_L = apart_L.exp()
    weighted_L = (own.weighted_L + apart_L * own.sum_L) * scale_L
    logit_T = (own.logit_T + apart_L[row_of_T]).masked_fill(~own_T, 0.0)
    sums = torch.cat([own.sum_L * scale_L, weighted_L, logit_T])
    ids.take_sum(sums)
    return _Sums(largest_L, *torch.split(sums, [*[len(apart_L)] * 2, len(logit_T)])), apart_L


def _to_gradient_(
    logprobs_RV: Tensor, total_R: Tensor, entropy: tuple[Tensor, Tensor] | None
) -> None:
    """In place, of log-probs p: the gradient of logits but for targets', -(total + g (log p + H)) p.

    total_R: gradients of a position's log-probs, summed. entropy: its gradient g, and the entropy H.
    """
    if entropy is None:
        logprobs_RV.exp_().mul_(-total_R[:, None])
        return
    gradient_R, entropy_R = entropy
    probabilities_RV = logprobs_RV.exp()
    logprobs_RV.add_(entropy_R[:, None]).mul_(-gradient_R[:, None]).sub_(total_R[:, None])
    logprobs_RV.mul_(probabilities_RV)


def _logits(hidden_CH: Tensor, weight_VH: Tensor, settings: _Settings, buffer_CV: Tensor) -> Tensor:
    """In the buffer's dtype and its first rows."""
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
    wide = torch.promote_types(hidden_LH.dtype, torch.float32)
    rows = min(settings.chunk, len(hidden_LH))
    return hidden_LH.new_empty(rows, len(weight_VH), dtype=wide)


def _chunks(row_of_T: Tensor, num_rows: int, rows: int) -> list[tuple[slice, slice]]:
    """Ranges of at most `rows` positions, and of the targets that they predict."""
    bounds = [*range(0, num_rows, rows), num_rows]
    cuts = torch.searchsorted(row_of_T, torch.tensor(bounds, device=row_of_T.device)).tolist()
    return [
        (slice(first, last), slice(low, high))
        for first, last, low, high in zip(bounds, bounds[1:], cuts, cuts[1:], strict=False)
    ]


def _tiles(positions: slice, rows: int) -> Iterator[tuple[slice, slice]]:
    """Parts of positions, and which rows of their chunk these are."""
    for first in range(positions.start, positions.stop, rows):
        tile = slice(first, min(first + rows, positions.stop))
        yield tile, slice(tile.start - positions.start, tile.stop - positions.start)
