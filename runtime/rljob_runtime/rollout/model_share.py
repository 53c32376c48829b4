"""The share of a model in the process of a `torch` rollout engine: the full model, or a share among ranks.

Called by `rollout_torch`. This module has the form for one rank; `rank_share` has that for several.
"""

# B sequences, V vocabulary of the share, U tokens, M layers with experts, K experts of a token

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.fused.fused_decoder import FusedDecoder
from rljob_runtime.models.fused.fused_weights import WeightFactory, Weights, floats
from rljob_runtime.models.fused.part import NoJoins, unsharded
from rljob_runtime.models.routes import pack_routes
from rljob_runtime.models.tower import VisionTowers
from rljob_runtime.models.weights import load_weights, weights_checksum
from rljob_runtime.rollout.rollout_engine import Sampling
from rljob_runtime.rollout.sampling import draw
from rljob_runtime.rollout.sight import Sight, make_sight


class ModelShare(Protocol):
    """A decoder with its weights by Hugging Face name; its results are the same on all ranks of the model."""

    model: FusedDecoder
    views: dict[str, Weights]
    shapes: dict[str, torch.Size]
    """Shapes of the full model's weights by Hugging Face name."""
    sight: Sight | None
    """Prepares prompts with pictures; None for a model that gets none."""

    def load(self, path: Path) -> None:
        """Fill the views from a directory. Raises as `load_weights`."""
        ...

    def copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill the views from full tensors of the model's names and shapes, each as it arrives."""
        ...

    def checksum(self) -> str:
        """Return `weights_checksum` of the full model, none of which is in 8 bits."""
        ...

    def draw(
        self, logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """Return tokens and log-probs, [B] both, as `sampling.draw` of all logits."""
        ...

    def logprobs(self, logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
        """Return the log-probs of these tokens at temperature 1, [B] float."""
        ...

    def pack_routes(self, routes_UMK: Tensor) -> bytes:
        """Return a sample's routes in all layers that have experts. routes_UMK: in those of this process."""
        ...


class FullModel:
    """A `ModelShare` of one rank. new, max_length, keeps_routes: as in `FusedDecoder`. pictures: whether
    prompts show any. towers: as in `make_sight`. text_ids: as in `make_torch_rollout`."""

    def __init__(
        self,
        path: Path,
        *,
        new: WeightFactory,
        max_length: int,
        pictures: bool = False,
        towers: VisionTowers | None = None,
        keeps_routes: bool = False,
        text_ids: int | None = None,
    ) -> None:
        self._text_ids = text_ids
        partition = unsharded(read_architecture(read_config(path)))
        self.sight = make_sight(path, partition, new, towers) if pictures else None
        self.model = FusedDecoder(
            partition, NoJoins(), new, max_length=max_length, keeps_routes=keeps_routes
        )
        self.views = self.model.hf_views()
        self.shapes = {name: view.shape for name, view in self.views.items()}

    def load(self, path: Path) -> None:
        """Load all weights. See `ModelShare.load`."""
        load_weights(self.views, path)

    def copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy all weights. See `ModelShare.copy`."""
        for name, tensor in weights:
            self.views[name].copy_(tensor)

    def checksum(self) -> str:
        """Return the checksum of all weights. See `ModelShare.checksum`."""
        return weights_checksum(floats(self.views))

    def draw(
        self, logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """Sample from all logits. See `ModelShare.draw`."""
        return draw(logits_BV[:, : self._text_ids], uniforms_B, sampling)

    def logprobs(self, logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
        """Return log-probs from all logits. See `ModelShare.logprobs`."""
        return logits_BV[:, : self._text_ids].log_softmax(-1).gather(1, tokens_B[:, None])[:, 0]

    def pack_routes(self, routes_UMK: Tensor) -> bytes:
        """Pack the routes of all layers. See `ModelShare.pack_routes`."""
        return pack_routes(routes_UMK)
