"""Which of a packed batch's tokens each rank of a replica computes, by arithmetic.

Called by `context_attention`, `vocabulary_ends` and `stages`. Tokens are cut over context ranks as their
attention wants them, each one's are padded to a multiple of its tensor ranks, and cut evenly over these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.models.packing import Segments
from rljob_runtime.parallel.context import ZigZag
from rljob_runtime.parallel.ranks import Place
from rljob_runtime.parallel.tensor import padded_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShare:
    """One rank's. places: packed places of its context rank's tokens, ascending. inside: as many, with
    padding behind them: what attention and cut matrices have. tensor: (place, of)."""

    places: Sequence[int]
    inside: int
    tensor: tuple[int, int]

    @property
    def outside(self) -> range:
        """What the rank's norms, residuals and routers have of `inside`."""
        place, of = self.tensor
        each = self.inside // of
        return range(place * each, (place + 1) * each)

    @property
    def real_outside(self) -> int:
        """How many of `outside` are no padding; they come first."""
        return min(max(len(self.places) - self.outside.start, 0), len(self.outside))


def token_share(segments: Segments, place: Place, degrees: UpdateDegrees) -> TokenShare:
    """The share of a rank. segments: of the batch, with a token at least."""
    tensor = place.tensor, degrees.tensor
    if is_ring(degrees):
        return zig_zag_share(zig_zag(segments, degrees.context), place.context, tensor=tensor)
    return even_share(segments.num_tokens, (place.context, degrees.context), tensor=tensor)


def is_ring(degrees: UpdateDegrees) -> bool:
    """Whether context ranks have zig-zag pieces of each sample; else even pieces of the whole batch."""
    return degrees.context > 1 and degrees.context_algorithm == "ring"


def zig_zag(segments: Segments, ranks: int) -> ZigZag:
    """Prompts and responses in zig-zag pieces; a response sees all of its prompt."""
    prompts = len(segments.lengths) - len(segments.prompt_of)
    seen = ((prompts + sample, prompt) for sample, prompt in enumerate(segments.prompt_of))
    return ZigZag(lengths=segments.lengths, ranks=ranks, prefixes=tuple(seen))


def zig_zag_share(layout: ZigZag, context: int, *, tensor: tuple[int, int]) -> TokenShare:
    """Shares differ between context ranks by their samples' odd tokens; one without tokens has padding."""
    places = layout.tokens(context)
    inside = padded_tokens(max(len(places), 1), tensor[1])
    return TokenShare(places=places, inside=inside, tensor=tensor)


def even_share(tokens: int, context: tuple[int, int], *, tensor: tuple[int, int]) -> TokenShare:
    """All shares have the same size; padding lies in the last ones."""
    inside = padded_tokens(tokens, context[1] * tensor[1]) // context[1]
    first, last = (min(end * inside, tokens) for end in (context[0], context[0] + 1))
    return TokenShare(places=range(first, last), inside=inside, tensor=tensor)
