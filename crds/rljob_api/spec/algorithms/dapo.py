"""DAPO (arXiv:2503.14476): clip-higher, token-level loss, overlong shaping, no groups without a signal."""

from typing import Self

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import ClipHigh, ClippedParams
from rljob_api.spec.algorithms.sampling import DynamicSampling
from rljob_api.spec.section import Section


class Overlong(Section):
    """Penalty for responses near the longest length, rising linearly over the last tokens."""

    buffer_tokens: int = Field(ge=1, le=10_000_000)
    """Tokens before the longest length from which on a response costs something (the paper's L_cache)."""

    penalty: float = Field(default=1.0, gt=0, le=1000)
    """Penalty of a response of the longest length."""

    max_length: int | None = Field(default=None, ge=1, le=10_000_000)
    """Length at which the full penalty applies (the paper's L_max); default: maxResponseLength."""


class DAPOParams(ClippedParams):
    """GRPO's advantages with another upper clip, a mean over the tokens of the global batch, and shaping."""

    clip_high: ClipHigh = 0.28

    dynamic_sampling: DynamicSampling | None = None
    """Train only on groups with a signal, as in the paper. Default: on all groups."""

    overlong: Overlong | None = None
    """Soft penalty for long responses, subtracted from the reward before the advantages are computed. Whether
    a group has a signal is decided by the reward without it. Default: none."""

    @property
    def refills(self) -> bool:
        """Return whether dynamic sampling is used."""
        return self.dynamic_sampling is not None

    def resolved(self, *, max_response_length: int) -> Self:
        """Return the parameters with the longest response as the limit of the overlong shaping."""
        params = super().resolved(max_response_length=max_response_length)
        if params.overlong is None or params.overlong.max_length is not None:
            return params
        overlong = params.overlong.model_copy(update={"max_length": max_response_length})
        return params.model_copy(update={"overlong": overlong})
