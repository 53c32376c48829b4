"""Both ends of a decoder: tokens to embeddings, hidden states to log-probs.

The decoder uses the single-device version in this file; `vocabulary_ends` has the version for ranks that
share vocabulary and tokens.
"""

# U packed tokens, H hidden, V vocabulary

from typing import Protocol

from torch import Tensor

from rljob_runtime.devices.kernels.linear import embedding
from rljob_runtime.devices.kernels.linear_logprobs import linear_logprobs
from rljob_runtime.models.architecture import MoeArchitecture
from rljob_runtime.models.blocks.matrix import Matrix
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.packing import Packing
from rljob_runtime.models.policy_model import TokenLogprobs


class Ends(Protocol):
    """Computes what comes before a decoder's layers and after its last norm."""

    def share(self, packing: Packing) -> Packing:
        """Return the packing with the tokens and positions of this rank's attention; all else is
        unchanged."""
        ...

    def embed(self, packing: Packing, weight_VH: Tensor) -> Tensor:
        """Return embeddings of the tokens that this rank's layers compute. packing: returned by `share`."""
        ...

    def logprobs(
        self,
        hidden_UH: Tensor,
        weight_VH: Tensor,
        packing: Packing,
        *,
        temperature: float,
        with_entropy: bool,
        text_ids: int | None,
    ) -> TokenLogprobs:
        """Return log-probs of all of the packing's response tokens. text_ids: see `Decoder`."""
        ...

    def values(self, hidden_UH: Tensor, score: Matrix, packing: Packing) -> Tensor:
        """Return a scalar head's values, float32 [T], at the position before each response token."""
        ...

    def router_load(self, experts: MoeArchitecture, packing: Packing) -> RouterLoad:
        """Return an empty load for the tokens that this rank's layers compute."""
        ...


class WholeEnds:
    """Ends of one device, where vocabulary and tokens are not split."""

    def share(self, packing: Packing) -> Packing:
        """Return the packing unchanged, since one rank has all tokens."""
        return packing

    def embed(self, packing: Packing, weight_VH: Tensor) -> Tensor:
        """Return the embeddings of all packed tokens."""
        return embedding(packing.tokens_U, weight_VH)

    def logprobs(
        self,
        hidden_UH: Tensor,
        weight_VH: Tensor,
        packing: Packing,
        *,
        temperature: float,
        with_entropy: bool,
        text_ids: int | None,
    ) -> TokenLogprobs:
        """Return log-probs over the full vocabulary."""
        logprobs_T, entropy_T = linear_logprobs(
            hidden_UH.index_select(0, packing.predicting_L),
            weight_VH,
            packing.target_T,
            packing.row_of_T,
            temperature=temperature,
            with_entropy=with_entropy,
            rows=text_ids,
        )
        return TokenLogprobs(
            logprobs_T=logprobs_T, entropy_T=None if entropy_T is None else entropy_T.detach()
        )

    def values(self, hidden_UH: Tensor, score: Matrix, packing: Packing) -> Tensor:
        """Return the scalar head's value for each response token."""
        values_L1: Tensor = score(hidden_UH.index_select(0, packing.predicting_L))
        return values_L1[:, 0].float()[packing.row_of_T]

    def router_load(self, experts: MoeArchitecture, packing: Packing) -> RouterLoad:
        """Return an empty load for all tokens."""
        return RouterLoad(experts)
