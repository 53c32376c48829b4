"""What a vision tower that is trained keeps for its backward pass, tensor by tensor, beside the plan."""

from dataclasses import replace

import pytest
import torch
from transformers.models.qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.models.qwen3_vl import Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from benchmarks.support.held_memory import HeldMemory
from rljob_api.model.architecture import BUILTINS
from rljob_api.model.vision import read_tower, tower_outputs
from rljob_api.topology.devices import UpdateDegrees
from rljob_plan.activations import PackedSizes, plan_activations
from rljob_runtime.models.tower import VisionTower
from rljob_runtime.samples.pictures import Picture

SIZES = {"depth": 3, "hidden_size": 128, "intermediate_size": 192, "num_heads": 8, "patch_size": 4}
MODELS = {
    "qwen2.5-vl": (
        Qwen2_5_VLConfig,
        Qwen2_5_VisionTransformerPretrainedModel,
        {"out_hidden_size": 96, "fullatt_block_indexes": [1], "window_size": 16},
    ),
    "qwen3-vl": (
        Qwen3VLConfig,
        Qwen3VLVisionModel,
        {"out_hidden_size": 96, "deepstack_visual_indexes": [0, 2], "num_position_embeddings": 16},
    ),
}
PROMPTS, SIDE = 3, 8
"""Of a picture each, of so many patches a side."""


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tower_that_is_trained_keeps_what_is_planned(family: str, dtype: torch.dtype) -> None:
    make, module, sizes = MODELS[family]
    config = make(vision_config=SIZES | sizes)
    planned = read_tower(config.to_dict())
    assert planned is not None
    tower = VisionTower(module(config.vision_config).to(dtype), trained=True)
    patches_PX = torch.rand(PROMPTS, SIDE**2, planned.patch).to(dtype)
    pictures = [Picture(patches_PX=one_PX, grid=(1, SIDE, SIDE)) for one_PX in patches_PX]
    tokens = SIDE**2 // planned.merged

    with HeldMemory(tower.module.parameters()) as held:
        weights = held.bytes_now()
        seen = tower.see(pictures, torch.arange(PROMPTS * tokens))
        kept = held.bytes_now() - weights

    assert seen.features_PH.requires_grad
    shape = replace(BUILTINS["tiny"], vision=planned, tower_outputs=tower_outputs(config.to_dict()))
    packed = PackedSizes.of(PROMPTS, 4, prompt=2 * tokens, response=4)
    whole, alone = (
        plan_activations(
            replace(shape, trains_tower=trains),
            UpdateDegrees.model_validate({"data": 1}),
            packed,
            item_bytes=dtype.itemsize,
            recompute="full",
            passes=1,
            pictured=tokens,
        )
        for trains in (True, False)
    )
    assert kept == pytest.approx(whole.retained - alone.retained, rel=0.05)
