"""Which of a packed batch's tokens each rank of a replica computes, by arithmetic.

Called by `attention` and `ends`. Packed tokens are padded to a multiple of context × tensor ranks and cut
evenly, first over context ranks, then over their tensor ranks, so that every share has the same size;
padding lies at the end of the last ones.
"""

from dataclasses import dataclass

from rljob_runtime.parallel.tensor import padded_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShares:
    """Cuts of `tokens` real packed tokens. context, tensor: a rank's (place, of)."""

    tokens: int
    context: tuple[int, int]
    tensor: tuple[int, int]

    @property
    def padded(self) -> int:
        """Tokens with padding."""
        return padded_tokens(self.tokens, self.context[1] * self.tensor[1])

    @property
    def inside(self) -> range:
        """Places that the rank's attention and cut matrices have: its context rank's, padding too."""
        return _cut(range(self.padded), *self.context)

    @property
    def outside(self) -> range:
        """Places that the rank's norms, residuals and routers have: of `inside` its tensor rank's."""
        return _cut(self.inside, *self.tensor)

    @property
    def real_outside(self) -> int:
        """How many of `outside` are no padding; they come first."""
        return min(max(self.tokens - self.outside.start, 0), len(self.outside))


def _cut(places: range, place: int, of: int) -> range:
    each = len(places) // of
    return places[place * each : (place + 1) * each]
