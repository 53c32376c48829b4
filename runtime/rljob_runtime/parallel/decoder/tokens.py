"""Compute which of a packed batch's tokens each rank of a replica computes.

Called by `context_attention`, `vocabulary_ends` and `policy`. Tokens are split over context ranks as their
attention requires. Each context rank's tokens are padded to a multiple of its tensor ranks, and split evenly
over these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.models.packing import Segments
from rljob_runtime.parallel.context import ZigZag
from rljob_runtime.parallel.ranks import RankCoordinates
from rljob_runtime.parallel.tensor import padded_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShare:
    """The tokens of one rank. packed_offsets: of its context rank's tokens, ascending. inside: their number
    with padding behind them, which attention and sharded matrices have. tensor: (rank, ranks)."""

    packed_offsets: Sequence[int]
    inside: int
    tensor: tuple[int, int]

    @property
    def outside(self) -> range:
        """The range of `inside` that the rank's norms, residuals and routers have."""
        rank, ranks = self.tensor
        each = self.inside // ranks
        return range(rank * each, (rank + 1) * each)

    @property
    def real_outside(self) -> int:
        """The number of tokens in `outside` that are not padding; they come first."""
        return min(max(len(self.packed_offsets) - self.outside.start, 0), len(self.outside))


def token_share(
    segments: Segments, coordinates: RankCoordinates, degrees: UpdateDegrees
) -> TokenShare:
    """Return the share of a rank. segments: of the batch, with at least one token."""
    tensor = coordinates.tensor, degrees.tensor
    if is_ring(degrees):
        return zig_zag_share(zig_zag(segments, degrees.context), coordinates.context, tensor=tensor)
    return even_share(segments.num_tokens, (coordinates.context, degrees.context), tensor=tensor)


def is_ring(degrees: UpdateDegrees) -> bool:
    """Return whether context ranks have zig-zag chunks of each sample, rather than even chunks of the
    batch."""
    return degrees.context > 1 and degrees.context_algorithm == "ring"


def zig_zag(segments: Segments, ranks: int) -> ZigZag:
    """Return the zig-zag layout of prompts and responses; a response attends to all of its prompt."""
    prompts = len(segments.lengths) - len(segments.prompt_of)
    prefixes_of_responses = (
        (prompts + sample, prompt) for sample, prompt in enumerate(segments.prompt_of)
    )
    return ZigZag(lengths=segments.lengths, ranks=ranks, prefixes=tuple(prefixes_of_responses))


def zig_zag_share(layout: ZigZag, context: int, *, tensor: tuple[int, int]) -> TokenShare:
    """Return a share of a zig-zag layout. Shares differ between context ranks by their samples' odd tokens;
    one without tokens has padding."""
    packed_offsets = layout.tokens(context)
    inside = padded_tokens(max(len(packed_offsets), 1), tensor[1])
    return TokenShare(packed_offsets=packed_offsets, inside=inside, tensor=tensor)


def even_share(tokens: int, context: tuple[int, int], *, tensor: tuple[int, int]) -> TokenShare:
    """Return a share of an even layout. All shares have the same size; padding is in the last ones."""
    inside = padded_tokens(tokens, context[1] * tensor[1]) // context[1]
    first, last = (min(end * inside, tokens) for end in (context[0], context[0] + 1))
    return TokenShare(packed_offsets=range(first, last), inside=inside, tensor=tensor)
