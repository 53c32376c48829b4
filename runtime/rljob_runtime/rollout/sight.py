"""Prepare prompts with pictures for a decoder that generates: their tokens' positions, and a tower's
features.

Created by a `ModelShare`; called by `waiting`. After a prompt all axes of a position are equal again.
"""

# G groups, P tokens of the longest prefix

from collections.abc import Sequence
from pathlib import Path

import torch

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import Vision
from rljob_runtime.models.fused.fused_weights import WeightFactory
from rljob_runtime.models.fused.part import ModelShard
from rljob_runtime.models.fused.step import PictureInputs
from rljob_runtime.models.tower import VisionTower, VisionTowers
from rljob_runtime.models.vision.rope_index import TokenPositions, token_positions
from rljob_runtime.rollout.rollout_engine import PromptGroup


def make_sight(
    path: Path, shard: ModelShard, new: WeightFactory, towers: VisionTowers | None = None
) -> "Sight":
    """Return the sight of a directory's model, with its vision tower where these layers read it. towers: of
    the device; None to load one. Raises ConfigError for a model without a tower, and as
    `VisionTower.from_path`."""
    vision, first = shard.sizes.vision, shard.layers.start
    if vision is None:
        raise ConfigError(
            f"{path} has no vision tower, and prompts show pictures; use a model with one"
        )
    tower, arrives = None, towers is not None and towers.arrives
    if first == 0 or first < vision.added:
        towers = towers or VisionTowers(path=path, device=torch.device(new.device))
        tower = towers.of(new.dtype)
    return Sight(vision, tower, arrives=arrives)


class Sight:
    """The picture inputs of one model. tower: None where these layers get none of its features. arrives:
    whether its weights are received with the rollout's."""

    def __init__(self, vision: Vision, tower: VisionTower | None, *, arrives: bool = False) -> None:
        self._vision, self._tower = vision, tower
        self._arriving = tower if arrives else None

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The tower's weights that are received with the rollout's, the live tensors; none of a frozen
        tower."""
        return self._arriving.weights if self._arriving is not None else {}

    @property
    def merged(self) -> int:
        """Patches of a side that become a token."""
        return self._vision.merged

    def forget(self) -> None:
        """Drop cached features that were computed with weights which have been freed or changed."""
        if self._arriving is not None:
            self._arriving.forget()

    def next_position(self, group: PromptGroup) -> int:
        """Return the position of the first token after the group's prefix."""
        return self._placement(group).next

    def inputs_of(self, groups: Sequence[PromptGroup], device: str) -> PictureInputs | None:
        """Return the inputs of a prefill of these groups' prefixes; None where they show no pictures. Raises
        ConfigError where tokens and pictures do not match."""
        pictures = [picture for group in groups for picture in group.all_pictures]
        if not pictures:
            return None
        placements = [self._placement(group) for group in groups]
        rows = [placement.positions_N3 for placement in placements]
        positions_GP3 = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        width = positions_GP3.shape[1]
        token_indices = [
            placement.pictured_P + index * width for index, placement in enumerate(placements)
        ]
        pictured = None
        if self._tower is not None:
            pictured = self._tower.see(pictures, torch.cat(token_indices).to(device))
        return PictureInputs(positions=positions_GP3.flatten(0, 1).to(device), pictured=pictured)

    def _placement(self, group: PromptGroup) -> TokenPositions:
        is_text_N = torch.tensor([not group.pictures] * len(group.token_ids) + group.drawn_of_begun)
        is_picture_N = (torch.tensor(group.prefix) == self._vision.picture_token) & ~is_text_N
        return token_positions(is_picture_N, group.all_pictures, self._vision)
