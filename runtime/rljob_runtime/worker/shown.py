"""What the models of a device are shown of rows with pictures. Made by `build`, once for each directory that
they are of.

Devices of jobs of text import nothing that reads pictures.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from rljob_api.spec.critic import Critic
from rljob_api.spec.teacher import Teacher
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.pictures import kept_tokens
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.models.tower import Tower, Towers
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.task.tokenizer import Tokenizer
from rljob_runtime.weights.held_policy import shape_of

if TYPE_CHECKING:
    from rljob_runtime.task.pictures.picture_columns import PictureReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """reader: of pictures in the dock; towers: of this device, which policy, reference and rollout engine
    share where they compute in one type; where the policy trains its own, the reference's, and generating:
    the rollout engine's. dtype: of those that do not generate. None in jobs of text, where nothing is done
    here."""

    reader: "PictureReader | None"
    towers: Towers | None
    generating: Towers | None
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        spec: ResolvedSpec,
        *,
        model: Path,
        tokenizer: Tokenizer,
        backend: Backend,
        beside: Critic | Teacher | None = None,
    ) -> "Shown":
        """That of a job's policy. beside: of this one, whose directory `model` is. Raises ConfigError for a
        directory without a processor of pictures."""
        dtype = DTYPES[(beside or spec.update).dtype]
        replicas = (beside or spec.update).parallelism.data
        if spec.model.vision is None:
            return cls(reader=None, towers=None, generating=None, dtype=dtype)
        from rljob_runtime.task.pictures.picture_columns import PictureReader
        from rljob_runtime.task.pictures.processor import processor_of

        processor = processor_of(spec, model, tokenizer)
        assert processor is not None, "a job with model.vision shows pictures"
        shape = shape_of(model)
        towers = Towers(
            path=model,
            device=backend.device,
            keeps_tokens=kept_tokens(spec, shape, replicas=replicas) if shape is not None else 0,
            track=partial(backend.ledger.track, MemoryKind.VISION_TOWER),
        )
        trains = spec.model.vision == "trained"
        generating = replace(towers, arrives=True) if trains else towers
        reader = PictureReader(processor)
        return cls(reader=reader, towers=towers, generating=generating, dtype=dtype)

    @property
    def trains(self) -> bool:
        """Whether the policy trains a tower."""
        return self.generating is not self.towers

    def to(self, model: PolicyModel, *, policy: bool = False) -> None:
        """Give a model of the update layout the tower, where it has layers that read it; all ranks of a
        policy that trains it get one of their own. Raises ConfigError for a model that transformers
        computes."""
        if self.towers is None:
            return
        if not isinstance(model, Decoder) or model.architecture.vision is None:
            raise ConfigError(
                f"spec.model.vision: the model of {self.towers.path} is computed by transformers, or has no "
                "vision tower, and is shown no pictures here; use a model of docs/vision.md, or leave it out"
            )
        if policy and self.trains:
            path, device = self.towers.path, self.towers.device
            model.show(Tower.from_path(path, dtype=self.dtype, trained=True, device=device))
        elif _reads_pictures(model, range(max(1, model.architecture.vision.added))):
            model.show(self.towers.of(self.dtype))


def _reads_pictures(decoder: Decoder, layers: range) -> bool:
    """Whether it has one of these layers; in the place of another rank's is nothing."""
    return any(not isinstance(decoder.model.layers[index], nn.Identity) for index in layers)
