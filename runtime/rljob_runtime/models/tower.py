"""A vision tower: transformers' module with weights from a Hugging Face directory.

A decoder that gets pictures holds one. A frozen tower is in no model's parameters, and all models of a device
share it (`VisionTowers`). A trained tower is part of the decoder; the rollout engine has a second one, whose
weights arrive with the engine's others. Importing transformers' module takes seconds, so it is imported when
a tower is created.
"""

# P tokens that stand for pictures, X values of a patch, H hidden size of the decoder

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rljob_api.model.vision import TOWER
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.vision.pictured import Pictured
from rljob_runtime.models.weights import load_weights
from rljob_runtime.samples.pictures import Picture

HOST = torch.device("cpu")


Track = Callable[[list[Tensor]], None]
Features = tuple[Tensor, ...]
"""Features of a picture: [P, H] replacing its tokens' embeddings, then what is added after the first
layers."""


def _untracked(tensors: list[Tensor]) -> None:
    """Ignore the tensors; no memory ledger counts them."""


class VisionTower:
    """Computes features of pictures, one picture or batch at a time.

    module: of transformers, in evaluation mode. trained: whether gradients reach it. cache_tokens: maximum
    tokens whose features a frozen tower caches, of named pictures, so that states and passes of a step
    compute each once. A frozen tower computes each picture separately, so that its features have the same
    bits in any batch. track: called with features that are cached.
    """

    def __init__(
        self, module: nn.Module, *, trained: bool, cache_tokens: int = 0, track: Track = _untracked
    ) -> None:
        self.module, self.trained = module.eval().requires_grad_(trained), trained
        self.pictures_seen = self._cached_tokens = 0
        self._max_cached_tokens, self._track = cache_tokens, track
        self._cache: OrderedDict[str, Features] = OrderedDict()

    @classmethod
    def from_path(
        cls,
        path: Path,
        *,
        dtype: torch.dtype,
        trained: bool = False,
        device: torch.device = HOST,
        cache_tokens: int = 0,
        track: Track = _untracked,
    ) -> "VisionTower":
        """Load the tower of a directory whose architecture has `vision`.

        Raises ConfigError for a config.json that transformers cannot read, otherwise as `load_weights`.
        """
        module = _module(path, dtype)
        load_weights({TOWER + name: weight for name, weight in module.state_dict().items()}, path)
        module.to(device)
        return cls(module, trained=trained, cache_tokens=cache_tokens, track=track)

    @classmethod
    def drawn(cls, path: Path, *, seed: int, std: float) -> "VisionTower":
        """Create a trained tower of the sizes in a directory's config.json, with random weights.

        They are drawn as in `Decoder.initialize`. Raises ConfigError for an invalid config.json.
        """
        module, generator = _module(path, torch.float32), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in module.named_parameters():
                if "norm" in name or "ln_q" in name:
                    weight.fill_(1.0)
                elif name.endswith("bias"):
                    weight.zero_()
                else:
                    weight.normal_(0.0, std, generator=generator)
        return cls(module, trained=True)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return the live tensors by Hugging Face name, as matrices and vectors."""
        parameters = self.module.named_parameters()
        return {TOWER + name: as_matrix(weight.detach()) for name, weight in parameters}

    def forget(self) -> None:
        """Drop all cached features, which new weights make invalid."""
        self._cache.clear()
        self._cached_tokens = 0

    def see(self, pictures: list[Picture], places_P: Tensor) -> Pictured:
        """Compute the features of these pictures. places_P: positions of the tokens that they replace."""
        features = (
            [self._run(pictures)]
            if self.trained
            else [self._frozen(picture) for picture in pictures]
        )
        features_PH, *added = (torch.cat(rows_PH) for rows_PH in zip(*features, strict=True))
        return Pictured(places_P=places_P, features_PH=features_PH, added=tuple(added))

    def _frozen(self, picture: Picture) -> Features:
        """Return cached features, or compute them; the least recently used are evicted."""
        cached = self._cache.get(picture.name)
        if cached is not None:
            self._cache.move_to_end(picture.name)
            return cached
        features = self._run([picture])
        if picture.name and len(features[0]) <= self._max_cached_tokens:
            self._store(picture.name, features)
        return features

    def _store(self, name: str, features: Features) -> None:
        self._cached_tokens += len(features[0])
        while self._cached_tokens > self._max_cached_tokens:
            self._cached_tokens -= len(self._cache.popitem(last=False)[1][0])
        self._cache[name] = features
        self._track(list(features))

    def _run(self, pictures: Sequence[Picture]) -> Features:
        self.pictures_seen += len(pictures)
        first = next(self.module.parameters())
        patches = torch.cat([picture.patches_PX for picture in pictures])
        grids = torch.tensor([picture.grid for picture in pictures], device=first.device)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            output: Any = self.module(patches.to(first.device, first.dtype), grid_thw=grids)
        return output.pooler_output, *(getattr(output, "deepstack_features", None) or ())


@dataclass(slots=True, kw_only=True)
class VisionTowers:
    """The towers of a device that compute without gradient, one per dtype.

    path: the model's directory. cache_tokens, track: as in `VisionTower`. arrives: whether their weights
    arrive with the rollout's and are counted with them; otherwise they are tracked here.
    """

    path: Path
    device: torch.device = HOST
    cache_tokens: int = 0
    track: Track = _untracked
    arrives: bool = False
    _towers: dict[torch.dtype, VisionTower] = field(default_factory=dict, init=False)

    def of(self, dtype: torch.dtype) -> VisionTower:
        """Return the tower of this dtype, created on first use. Raises as `VisionTower.from_path`."""
        if dtype not in self._towers:
            self._towers[dtype] = tower = VisionTower.from_path(
                self.path,
                dtype=dtype,
                device=self.device,
                cache_tokens=self.cache_tokens,
                track=self.track,
            )
            if not self.arrives:
                self.track([*tower.weights.values()])
        return self._towers[dtype]


def as_matrix(weight: Tensor) -> Tensor:
    """Return a view in which a convolution over patches that do not overlap is a matrix."""
    return weight.flatten(1) if weight.ndim > 2 else weight


def _module(path: Path, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoConfig
    from transformers.initialization import no_init_weights
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VisionTransformerPretrainedModel,
    )
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    modules: dict[str, Any] = {
        "qwen2_5_vl": Qwen2_5_VisionTransformerPretrainedModel,
        "qwen3_vl": Qwen3VLVisionModel,
    }
    try:
        config: Any = AutoConfig.from_pretrained(path, local_files_only=True)
        with no_init_weights():
            module: nn.Module = modules[config.model_type]._from_config(
                config.vision_config, dtype=dtype
            )
    except Exception as error:  # the type depends on what is invalid
        raise ConfigError(
            f"{path / 'config.json'}: transformers cannot make the vision tower ({type(error).__name__}: "
            f"{error}); copy the model again"
        ) from error
    return module
