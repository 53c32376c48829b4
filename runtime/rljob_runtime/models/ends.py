"""Both ends of a decoder: tokens to embeddings, hidden states to log-probs.

Called by the decoder, which knows this form, of one device; `vocabulary_ends` has that of ranks which
share vocabulary and tokens.
"""

# U packed tokens, H hidden, V vocabulary

from typing import Protocol

from torch import Tensor

from rljob_runtime.devices.kernels.linear import embedding
from rljob_runtime.devices.kernels.linear_logprobs import linear_logprobs
from rljob_runtime.models.architecture import Experts
from rljob_runtime.models.blocks.matrix import Matrix
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.packing import Packing
from rljob_runtime.models.policy_model import TokenLogprobs


class Ends(Protocol):
    """What lies before a decoder's layers and behind its last norm."""

    def share(self, packing: Packing) -> Packing:
        """With the tokens and positions that this rank's attention gets; all else as it is."""
        ...

    def embed(self, packing: Packing, weight_VH: Tensor) -> Tensor:
        """Embeddings of the tokens that this rank's layers compute. packing: of `share`."""
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
        """Log-probs of all of the packing's response tokens. text_ids: as the decoder has it."""
        ...

    def values(self, hidden_UH: Tensor, score: Matrix, packing: Packing) -> Tensor:
        """Of a scalar head, float32 [T]: at the position that each response token follows."""
        ...

    def router_load(self, experts: Experts, packing: Packing) -> RouterLoad:
        """An empty one, for the tokens that this rank's layers compute."""
        ...


class WholeEnds:
    """Vocabulary and tokens are whole."""

    def share(self, packing: Packing) -> Packing:
        """See Ends."""
        return packing

    def embed(self, packing: Packing, weight_VH: Tensor) -> Tensor:
        """See Ends."""
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
        """See Ends."""
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
        """See Ends."""
        values_L1: Tensor = score(hidden_UH.index_select(0, packing.predicting_L))
        return values_L1[:, 0].float()[packing.row_of_T]

    def router_load(self, experts: Experts, packing: Packing) -> RouterLoad:
        """See Ends."""
        return RouterLoad(experts)
