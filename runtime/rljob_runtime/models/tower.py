"""A vision tower: transformers' module, with weights out of a Hugging Face directory.

Held by a decoder that is given pictures. A frozen one belongs to nobody's parameters, and all models of a
device have the same (`Towers`); a trained one is a part of the decoder, and the rollout engine has another,
whose weights come with its others. transformers' module takes seconds to import, so that is done when a tower
is made.
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
"""Of a picture: [P, H] in place of its tokens' embeddings, then what is added behind the first layers."""


def _untracked(tensors: list[Tensor]) -> None:
    """Nobody counts them."""


class Tower:
    """module: of transformers, in evaluation mode. trained: whether gradients reach it. keeps_tokens: most
    tokens whose features a frozen one keeps, of named pictures, so that it sees each of a step once, whatever
    states and passes ask. It sees each by itself: its features are the same bits in whatever batch. track:
    called with features that are kept."""

    def __init__(
        self, module: nn.Module, *, trained: bool, keeps_tokens: int = 0, track: Track = _untracked
    ) -> None:
        self.module, self.trained = module.eval().requires_grad_(trained), trained
        self.pictures_seen = self._kept_tokens = 0
        self._keeps_tokens, self._track = keeps_tokens, track
        self._kept: OrderedDict[str, Features] = OrderedDict()

    @classmethod
    def from_path(
        cls,
        path: Path,
        *,
        dtype: torch.dtype,
        trained: bool = False,
        device: torch.device = HOST,
        keeps_tokens: int = 0,
        track: Track = _untracked,
    ) -> "Tower":
        """Of a directory whose architecture has `vision`. Raises ConfigError for a config.json that
        transformers cannot read, and as `load_weights`."""
        module = _module(path, dtype)
        load_weights({TOWER + name: held for name, held in module.state_dict().items()}, path)
        module.to(device)
        return cls(module, trained=trained, keeps_tokens=keeps_tokens, track=track)

    @classmethod
    def drawn(cls, path: Path, *, seed: int, std: float) -> "Tower":
        """A trained one of the sizes in a directory's config.json, its weights drawn as a decoder's are
        (`Decoder.initialize`). Raises ConfigError."""
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
        """The live tensors by Hugging Face name, as matrices and vectors."""
        held = self.module.named_parameters()
        return {TOWER + name: as_matrix(weight.detach()) for name, weight in held}

    def forget(self) -> None:
        """Keep no features: other weights see other ones."""
        self._kept.clear()
        self._kept_tokens = 0

    def see(self, pictures: list[Picture], places_P: Tensor) -> Pictured:
        """What it makes of these pictures. places_P: of the tokens that stand for them."""
        found = [self._run(pictures)] if self.trained else [self._frozen(of) for of in pictures]
        features_PH, *added = (torch.cat(rows_PH) for rows_PH in zip(*found, strict=True))
        return Pictured(places_P=places_P, features_PH=features_PH, added=tuple(added))

    def _frozen(self, picture: Picture) -> Features:
        """Kept, or seen now; those that were asked last are kept."""
        known = self._kept.get(picture.name)
        if known is not None:
            self._kept.move_to_end(picture.name)
            return known
        found = self._run([picture])
        if picture.name and len(found[0]) <= self._keeps_tokens:
            self._keep(picture.name, found)
        return found

    def _keep(self, name: str, found: Features) -> None:
        self._kept_tokens += len(found[0])
        while self._kept_tokens > self._keeps_tokens:
            self._kept_tokens -= len(self._kept.popitem(last=False)[1][0])
        self._kept[name] = found
        self._track(list(found))

    def _run(self, pictures: Sequence[Picture]) -> Features:
        self.pictures_seen += len(pictures)
        first = next(self.module.parameters())
        patches = torch.cat([picture.patches_PX for picture in pictures])
        grids = torch.tensor([picture.grid for picture in pictures], device=first.device)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            found: Any = self.module(patches.to(first.device, first.dtype), grid_thw=grids)
        return found.pooler_output, *(getattr(found, "deepstack_features", None) or ())


@dataclass(slots=True, kw_only=True)
class Towers:
    """The towers of a device that see without gradient, one of each type of numbers. path: the model's
    directory. keeps_tokens, track: of each, as `Tower` has them. arrives: whether their weights come with the
    rollout's, which they are counted with; those of others are tracked here, too."""

    path: Path
    device: torch.device = HOST
    keeps_tokens: int = 0
    track: Track = _untracked
    arrives: bool = False
    _made: dict[torch.dtype, Tower] = field(default_factory=dict, init=False)

    def of(self, dtype: torch.dtype) -> Tower:
        """The one of this type, made when it is first asked for. Raises as `Tower.from_path`."""
        if dtype not in self._made:
            self._made[dtype] = made = Tower.from_path(
                self.path,
                dtype=dtype,
                device=self.device,
                keeps_tokens=self.keeps_tokens,
                track=self.track,
            )
            if not self.arrives:
                self.track([*made.weights.values()])
        return self._made[dtype]


def as_matrix(weight: Tensor) -> Tensor:
    """A view in which a convolution over patches, which do not overlap, is the matrix that it is."""
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
    except Exception as error:  # of any type, by what is spoiled
        raise ConfigError(
            f"{path / 'config.json'}: transformers cannot make the vision tower ({type(error).__name__}: "
            f"{error}); copy the model again"
        ) from error
    return module
