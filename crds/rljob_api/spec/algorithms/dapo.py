"""DAPO (arXiv:2503.14476): clip-higher, token-level loss, overlong shaping, no groups without a signal."""

from typing import Self

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import ClipHigh, ClippedParams
from rljob_api.spec.algorithms.sampling import DynamicSampling
from rljob_api.spec.section import Section


class Overlong(Section):
    """Price of responses that come near to the longest, rising linearly over the last tokens."""

    buffer_tokens: int = Field(ge=1, le=10_000_000)
    """Tokens before the longest length from which on a response costs something (the paper's L_cache)."""

    penalty: float = Field(default=1.0, gt=0, le=1000)
    """What a response of the longest length costs."""

    max_length: int | None = Field(default=None, ge=1, le=10_000_000)
    """Length at which the whole penalty is due (the paper's L_max); default: maxResponseLength."""


class DAPOParams(ClippedParams):
    """GRPO's advantages with another upper clip, a mean over the tokens of the global batch, and shaping."""

    clip_high: ClipHigh = 0.28

    dynamic_sampling: DynamicSampling | None = None
    """Trains on groups with a signal alone, as the paper does. Default: on all groups."""

    overlong: Overlong | None = None
    """Soft punishment of long responses, taken off the reward before the advantages are made; which groups
    have a signal is told by the reward without it. Default: none."""

    @property
    def refills(self) -> bool:
        """With dynamic sampling."""
        return self.dynamic_sampling is not None

    def resolved(self, *, max_response_length: int) -> Self:
        """With the longest response as that of the overlong shaping."""
        own = super().resolved(max_response_length=max_response_length)
        if own.overlong is None or own.overlong.max_length is not None:
            return own
        overlong = own.overlong.model_copy(update={"max_length": max_response_length})
        return own.model_copy(update={"overlong": overlong})
