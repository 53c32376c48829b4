"""Prompts with pictures for vLLM: it gets the features of this device's tower, and loads no tower.

Called by `rollout_vllm` and `vllm_start`. vLLM takes features as multi-modal input where a model allows no
pixels (`enable_mm_embeds`, https://docs.vllm.ai/en/latest/features/multimodal_inputs/#embedding-inputs). So
policy, reference and vLLM get the same bits, a picture is encoded once a device, and nothing is prepared
twice. vLLM computes positions on three axes, and where DeepStack adds.
"""

# P tokens that stand for a picture, F features of one: hidden size, and as many more for each of DeepStack's

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import new_class
from typing import TYPE_CHECKING, Any

import torch

from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.fused.fused_weights import WeightFactory
from rljob_runtime.models.fused.part import unsharded
from rljob_runtime.models.tower import VisionTowers
from rljob_runtime.models.vision.names import has_tower
from rljob_runtime.rollout.rollout_engine import PromptGroup
from rljob_runtime.rollout.sight import Sight, make_sight

if TYPE_CHECKING:
    from vllm.inputs import MultiModalInput

MODELS = {
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
}
"""vLLM's classes by model_type, each in a module of that name."""
ARGUMENTS: dict[str, Any] = {
    "enable_mm_embeds": True,
    "limit_mm_per_prompt": {"image": 0, "video": 0},  # pixels, so that it loads no tower
    "hf_overrides": {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": False}},
}
"""Engine arguments for such a model."""
PROCESSOR = "transformers.models.qwen2_vl.image_processing_qwen2_vl"
WITHOUT_TORCHVISION = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
"""transformers' module with the same processor on Pillow."""


def vllm_sight(
    path: Path, *, dtype: torch.dtype, device: str, towers: VisionTowers | None
) -> "VllmSight":
    """Return the sight of a directory's model. towers: of the device. Raises ConfigError as `make_sight`."""
    partition = unsharded(read_architecture(read_config(path)))
    return VllmSight(
        make_sight(path, partition, WeightFactory(dtype=dtype, device=device), towers), device
    )


class VllmSight:
    """Converts prompts with pictures to vLLM's inputs."""

    def __init__(self, sight: Sight, device: str) -> None:
        self._sight, self._device = sight, device
        self._unnamed = count()

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The tower's weights. See `Sight.weights`."""
        return self._sight.weights

    def forget(self) -> None:
        """Drop cached features. See `Sight.forget`."""
        self._sight.forget()

    def input_of(self, group: PromptGroup) -> "MultiModalInput | None":
        """Return vLLM's input of the group's prefix; None where it shows no pictures. Raises ConfigError
        where tokens and pictures do not match."""
        from transformers import BatchFeature
        from vllm.inputs import mm_input
        from vllm.multimodal.inputs import (
            MultiModalFieldConfig,
            MultiModalKwargsItems,
            PlaceholderRange,
        )

        prefill_inputs = self._sight.inputs_of([group], self._device)
        if prefill_inputs is None:
            return None
        assert prefill_inputs.pictured is not None, "the layers of a whole model read pictures"
        pictures, token_indices = group.all_pictures, prefill_inputs.pictured.places_P.tolist()
        grids = torch.tensor([picture.grid for picture in pictures])
        counts = torch.tensor([picture.num_tokens(self._sight.merged) for picture in pictures])
        features_PF = torch.cat(
            [prefill_inputs.pictured.features_PH, *prefill_inputs.pictured.added], dim=1
        )
        firsts = (counts.cumsum(0) - counts).tolist()
        names = [picture.name or f"unnamed {next(self._unnamed)}" for picture in pictures]
        return mm_input(
            prompt_token_ids=list(group.prefix),
            mm_kwargs=MultiModalKwargsItems.from_hf_inputs(
                BatchFeature({"image_embeds": features_PF, "image_grid_thw": grids}),
                {
                    "image_embeds": MultiModalFieldConfig.flat_from_sizes("image", counts),
                    "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
                },
            ),
            mm_hashes={"image": names},
            mm_placeholders={
                "image": [
                    PlaceholderRange(offset=token_indices[first], length=length)
                    for first, length in zip(firsts, counts.tolist(), strict=True)
                ]
            },
        )


def arguments_of_sight(path: Path) -> dict[str, Any]:
    """Return vLLM's arguments for a directory's model, where it has a tower."""
    return ARGUMENTS if has_tower(read_config(path)) else {}


def take_features(path: Path) -> None:
    """Register a directory's model, where it has a tower, so that vLLM accepts features for it.

    vLLM would otherwise create a processor of pictures at the start, which needs a tokenizer.
    """
    config = read_config(path)
    if not has_tower(config):
        return
    from vllm import ModelRegistry
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.processing import BaseMultiModalProcessor, BaseProcessingInfo

    class Features(BaseProcessingInfo):  # type: ignore[misc]
        def get_supported_mm_limits(self) -> dict[str, None]:
            return {"image": None}

        def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: object) -> dict[str, int]:
            return {"image": seq_len}

    class NoPixels(BaseMultiModalProcessor):  # type: ignore[misc]
        requires_tokenizer = False

        def _get_mm_fields_config(self, *inputs: object) -> Any:
            raise AssertionError("vLLM is given features")

        _get_prompt_updates = _get_mm_fields_config

    with _no_torchvision_needed():
        name = str(config["model_type"])
        model = getattr(import_module(f"vllm.model_executor.models.{name}"), MODELS[name])
    featured_model = new_class(MODELS[name], (_DeepStack, model))
    register = MULTIMODAL_REGISTRY.register_processor
    register(NoPixels, info=Features, dummy_inputs=lambda info: None)(featured_model)
    ModelRegistry.register_model(MODELS[name], featured_model)


class _DeepStack:
    """A base before vLLM's class that adds rows after the first layers, which vLLM creates with a tower
    only."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        config = vllm_config.model_config.hf_config
        levels = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
        if not levels:
            return
        rows = vllm_config.scheduler_config.max_num_batched_tokens
        self.use_deepstack, self.deepstack_num_level = True, levels
        self.multiscale_dim = levels * config.vision_config.out_hidden_size
        self.deepstack_input_embeds = [
            torch.zeros(rows, config.text_config.hidden_size) for _ in range(levels)
        ]

    def load_weights(self, weights: Any) -> Any:
        """Load vLLM's weights. Sleep leaves garbage in the rows, which are restored with the weights."""
        for rows in getattr(self, "deepstack_input_embeds", ()):
            rows.zero_()
        return super().load_weights(weights)  # type: ignore[misc]


@contextmanager
def _no_torchvision_needed() -> Iterator[None]:
    """Replace a module of transformers that imports torchvision, which a CPU build of torch may lack. vLLM's
    models import a function on sizes from it; the module next to it has the same function."""
    if find_spec("torchvision") is not None or PROCESSOR in sys.modules:
        yield
        return
    sys.modules[PROCESSOR] = import_module(WITHOUT_TORCHVISION)
    try:
        yield
    finally:
        del sys.modules[PROCESSOR]
