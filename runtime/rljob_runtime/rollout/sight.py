"""Prompts with pictures, for a decoder that generates: where their tokens stand, and what a tower sees.

Made by a `ModelShare`; called by `waiting`. Behind a prompt all axes of a position are alike again.
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
    path: Path, part: ModelShard, new: WeightFactory, towers: VisionTowers | None = None
) -> "Sight":
    """Of a directory's model, with its vision tower where this part reads it. towers: of the device; None for
    one of its own. Raises ConfigError for a model without, and as `VisionTower.from_path`."""
    vision, first = part.sizes.vision, part.layers.start
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
    """tower: None where the layers here get nothing of it. arrives: whether its weights come with the
    rollout's."""

    def __init__(self, vision: Vision, tower: VisionTower | None, *, arrives: bool = False) -> None:
        self._vision, self._tower = vision, tower
        self._arriving = tower if arrives else None

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The tower's that come with the rollout's, the live tensors; none of one that stays as it is."""
        return self._arriving.weights if self._arriving is not None else {}

    @property
    def merged(self) -> int:
        """Patches of a side that become a token."""
        return self._vision.merged

    def forget(self) -> None:
        """Keep nothing that weights which have left or changed have seen."""
        if self._arriving is not None:
            self._arriving.forget()

    def next_position(self, group: PromptGroup) -> int:
        """Of the first token behind the group's prefix."""
        return self._place(group).next

    def see(self, groups: Sequence[PromptGroup], device: str) -> PictureInputs | None:
        """What a prefill of these groups' prefixes needs; None where they show no pictures. Raises
        ConfigError where tokens and pictures do not fit."""
        pictures = [picture for group in groups for picture in group.all_pictures]
        if not pictures:
            return None
        placed = [self._place(group) for group in groups]
        rows = [of.positions_N3 for of in placed]
        positions_GP3 = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        width = positions_GP3.shape[1]
        places = [of.pictured_P + index * width for index, of in enumerate(placed)]
        pictured = None
        if self._tower is not None:
            pictured = self._tower.see(pictures, torch.cat(places).to(device))
        return PictureInputs(positions=positions_GP3.flatten(0, 1).to(device), pictured=pictured)

    def _place(self, group: PromptGroup) -> TokenPositions:
        read_N = torch.tensor([not group.pictures] * len(group.token_ids) + group.drawn_of_begun)
        stands_N = (torch.tensor(group.prefix) == self._vision.picture_token) & ~read_N
        return token_positions(stands_N, group.all_pictures, self._vision)
