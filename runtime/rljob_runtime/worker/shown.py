"""The picture reader and vision towers of a device's models. `build` creates one for each model directory.

Devices of text-only jobs import nothing that reads pictures.
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
from rljob_plan.pictures import cached_tokens
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.models.tower import VisionTower, VisionTowers
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.task.tokenizer import Tokenizer
from rljob_runtime.weights.held_policy import shape_of

if TYPE_CHECKING:
    from rljob_runtime.task.pictures.picture_columns import PictureReader


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSetup:
    """The picture reader and the vision towers of a device.

    reader: of pictures in the dock. towers: shared by policy, reference and rollout engine if they have the
    same dtype; if the policy trains a tower, those of the reference. generating: the rollout engine's towers.
    dtype: of models that do not generate. reader and towers are None in text-only jobs.
    """

    reader: "PictureReader | None"
    towers: VisionTowers | None
    generating: VisionTowers | None
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        spec: ResolvedSpec,
        *,
        model: Path,
        tokenizer: Tokenizer,
        backend: Backend,
        other: Critic | Teacher | None = None,
    ) -> "VisionSetup":
        """Create those of a job's policy, or of the other model, whose directory `model` is.

        Raises ConfigError for a directory without a picture processor.
        """
        dtype = DTYPES[(other or spec.update).dtype]
        replicas = (other or spec.update).parallelism.data
        if spec.model.vision is None:
            return cls(reader=None, towers=None, generating=None, dtype=dtype)
        from rljob_runtime.task.pictures.picture_columns import PictureReader
        from rljob_runtime.task.pictures.processor import processor_of

        processor = processor_of(spec, model, tokenizer)
        assert processor is not None, "a job with model.vision shows pictures"
        shape = shape_of(model)
        towers = VisionTowers(
            path=model,
            device=backend.device,
            cache_tokens=cached_tokens(spec, shape, replicas=replicas) if shape is not None else 0,
            track=partial(backend.ledger.track, MemoryKind.VISION_TOWER),
        )
        trains = spec.model.vision == "trained"
        generating = replace(towers, arrives=True) if trains else towers
        reader = PictureReader(processor)
        return cls(reader=reader, towers=towers, generating=generating, dtype=dtype)

    @property
    def trains(self) -> bool:
        """Return whether the policy trains a tower."""
        return self.generating is not self.towers

    def to(self, model: PolicyModel, *, policy: bool = False) -> None:
        """Attach the tower to a model of the update layout, if it has layers that use it.

        All ranks of a policy that trains its tower get a separate one. Raises ConfigError for a model that
        transformers computes.
        """
        if self.towers is None:
            return
        if not isinstance(model, Decoder) or model.architecture.vision is None:
            raise ConfigError(
                f"spec.model.vision: the model of {self.towers.path} is computed by transformers, or has no "
                "vision tower, and is shown no pictures here; use a model of docs/vision.md, or leave it out"
            )
        if policy and self.trains:
            path, device = self.towers.path, self.towers.device
            model.show(VisionTower.from_path(path, dtype=self.dtype, trained=True, device=device))
        elif _reads_pictures(model, range(max(1, model.architecture.vision.added))):
            model.show(self.towers.of(self.dtype))


def _reads_pictures(decoder: Decoder, layers: range) -> bool:
    """Return whether the decoder has one of these layers; layers of other ranks are identities."""
    return any(not isinstance(decoder.model.layers[index], nn.Identity) for index in layers)
