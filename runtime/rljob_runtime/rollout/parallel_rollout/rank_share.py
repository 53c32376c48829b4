"""A rollout rank's share of a model: the `ModelShare` of several ranks. Made by `rollout_torch`."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from rljob_api.model.architecture import read_shape
from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.fused.fused_decoder import FusedDecoder
from rljob_runtime.models.fused.fused_weights import New
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.parallel.vocabulary import VocabularyShare
from rljob_runtime.rollout.parallel_rollout.draws import RankDraw
from rljob_runtime.rollout.parallel_rollout.joins import RankJoins
from rljob_runtime.rollout.parallel_rollout.parts import PartWeights, model_part
from rljob_runtime.rollout.rollout_engine import Sampling
from rljob_runtime.rollout.rollout_grid import Purpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups


class RankShare:
    """A `ModelShare`, of a model that the degrees fit. new, max_length: as in `FusedDecoder`."""

    def __init__(self, path: Path, groups: RolloutGroups, *, new: New, max_length: int) -> None:
        entries = read_config(path)
        architecture = read_architecture(entries)
        shape = read_shape(entries, name=f"{path}/config.json")
        assert shape is not None, f"the contract lacks {architecture.name}"
        held = VocabularyShare.of(architecture.vocab_size, groups[Purpose.TENSOR])
        self.model = FusedDecoder(
            model_part(architecture, groups.grid.part(shape, groups.rank)),
            RankJoins(held, groups, new.device),
            new,
            max_length=max_length,
        )
        self.views = self.model.hf_views()
        self._weights = PartWeights(self.views, shape, groups)
        self.shapes = self._weights.shapes
        self._draw = RankDraw(architecture.vocab_size, groups)

    def load(self, path: Path) -> None:
        """See ModelShare."""
        self._weights.load(path)

    def copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See ModelShare."""
        self._weights.copy(weights)

    def checksum(self) -> str:
        """See ModelShare. All ranks of a model call it together."""
        return weights_checksum(self._weights.whole())

    def draw(
        self, logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """See ModelShare."""
        return self._draw(logits_BV, uniforms_B, sampling)

    def logprobs(self, logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
        """See ModelShare."""
        return self._draw.logprobs(logits_BV, tokens_B)
