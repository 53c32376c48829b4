"""A rollout rank's share of a model: the `ModelShare` of several ranks. Created by `rollout_torch`."""

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_api.model.architecture import read_shape
from rljob_runtime.devices.wire import start_gather
from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.fused.fused_decoder import FusedDecoder
from rljob_runtime.models.fused.fused_weights import WeightFactory
from rljob_runtime.models.routes import pack_routes
from rljob_runtime.models.tower import VisionTowers
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.parallel.vocabulary import VocabularyShare
from rljob_runtime.rollout.parallel_rollout.draws import RankDraw
from rljob_runtime.rollout.parallel_rollout.joins import RankJoins
from rljob_runtime.rollout.parallel_rollout.parts import ShardWeights, model_part
from rljob_runtime.rollout.rollout_engine import Sampling
from rljob_runtime.rollout.rollout_grid import RolloutPurpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.rollout.sight import make_sight


class RankShare:
    """A `ModelShare` of several ranks, for a model that the degrees fit. new, max_length, keeps_routes: as in
    `FusedDecoder`. pictures: whether prompts show any. towers: as in `make_sight`. text_ids: as in
    `make_torch_rollout`."""

    def __init__(
        self,
        path: Path,
        groups: RolloutGroups,
        *,
        new: WeightFactory,
        max_length: int,
        pictures: bool = False,
        towers: VisionTowers | None = None,
        keeps_routes: bool = False,
        text_ids: int | None = None,
    ) -> None:
        entries = read_config(path)
        architecture = read_architecture(entries)
        shape = read_shape(entries, name=f"{path}/config.json")
        assert shape is not None, f"the contract lacks {architecture.name}"
        vocabulary = VocabularyShare.of(architecture.vocab_size, groups[RolloutPurpose.TENSOR])
        partition = model_part(architecture, groups.grid.partition(shape, groups.rank))
        self.sight = make_sight(path, partition, new, towers) if pictures else None
        self.model = FusedDecoder(
            partition,
            RankJoins(vocabulary, groups, new.device),
            new,
            max_length=max_length,
            keeps_routes=keeps_routes,
        )
        sparse = architecture.experts.layers if architecture.experts else ()
        stages = groups.grid.group(RolloutPurpose.PIPELINE, groups.rank)
        self._sparse = [
            len({*groups.grid.partition(shape, rank).layers} & {*sparse}) for rank in stages
        ]
        self._pipeline, self._device = groups[RolloutPurpose.PIPELINE], new.device
        self.views = self.model.hf_views()
        self._weights = ShardWeights(self.views, shape, groups)
        self.shapes = self._weights.shapes
        self._draw = RankDraw(architecture.vocab_size, groups, text_ids=text_ids)

    def load(self, path: Path) -> None:
        """Load this rank's slices. See `ModelShare.load`."""
        self._weights.load(path)

    def copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy this rank's slices. See `ModelShare.copy`."""
        self._weights.copy(weights)

    def checksum(self) -> str:
        """Return the full model's checksum; all ranks of a model call it together. See
        `ModelShare.checksum`."""
        return weights_checksum(self._weights.full_weights())

    def draw(
        self, logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """Sample tokens, the same on all ranks. See `ModelShare.draw`."""
        return self._draw(logits_BV, uniforms_B, sampling)

    def logprobs(self, logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
        """Return log-probs, the same on all ranks. See `ModelShare.logprobs`."""
        return self._draw.logprobs(logits_BV, tokens_B)

    def pack_routes(self, routes_UMK: Tensor) -> bytes:
        """See ModelShare. Gathers [U, the most layers of a stage, K] over the stages, as bytes."""
        padded = F.pad(routes_UMK, (0, 0, 0, max(self._sparse) - routes_UMK.shape[1]))
        sent = padded.view(torch.uint8).to(self._device)
        gathered = start_gather(sent, self._pipeline).wait()
        stages = torch.split(gathered, len(routes_UMK))
        stage_routes = [x[:, :layers] for x, layers in zip(stages, self._sparse, strict=True)]
        return pack_routes(torch.cat(stage_routes, 1))
