"""Small random vision-language models, as transformers makes them, and batches with pictures for them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from reference_models import weights_of
from torch import Tensor
from transformers.models.qwen2_5_vl import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from rljob_runtime.samples.pictures import Picture
from rljob_runtime.samples.sample import SampleBatch

WORDS = 71
"""Ids below are text; those of pictures are above."""
PICTURE, VIDEO, BEGIN, END = 71, 72, 73, 74
SIZE, FRAMES, CHANNELS = 4, 2, 3
TEXT: dict[str, Any] = {
    "vocab_size": 75,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
}
SEEN: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": SIZE,
    "temporal_patch_size": FRAMES,
    "spatial_merge_size": 2,
}
SPECIAL: dict[str, Any] = {
    "image_token_id": PICTURE,
    "video_token_id": VIDEO,
    "vision_start_token_id": BEGIN,
    "vision_end_token_id": END,
}
_ONE_HEAD = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
ONE_WIDE_HEAD: dict[str, dict[str, Any]] = {
    "qwen2.5-vl-tied": _ONE_HEAD | {"rope_parameters": _ROPE | {"mrope_section": [4, 6, 6]}},
    "qwen3-vl": _ONE_HEAD
    | {"rope_parameters": _ROPE | {"mrope_section": [8, 4, 4], "mrope_interleaved": True}},
}
"""Entries of a text_config: vLLM's attention on CPU has no heads of less than 32 features."""


def _qwen2_5(*, tied: bool = False, **text: Any) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    config = Qwen2_5_VLConfig(
        text_config=TEXT | {"rope_parameters": rope} | text,
        vision_config=SEEN | {"fullatt_block_indexes": [1], "window_size": 16},
        tie_word_embeddings=tied,
        **SPECIAL,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def _qwen3(*, tied: bool = False, **text: Any) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    config = Qwen3VLConfig(
        text_config=TEXT | {"head_dim": 16, "rope_parameters": rope} | text,
        vision_config=SEEN | {"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 16},
        tie_word_embeddings=tied,
        **SPECIAL,
    )
    return Qwen3VLForConditionalGeneration(config)


VISION_FAMILIES: dict[str, Callable[..., Any]] = {
    "qwen2.5-vl": _qwen2_5,
    "qwen2.5-vl-tied": partial(_qwen2_5, tied=True),
    "qwen3-vl": _qwen3,
    "qwen3-vl-tied": partial(_qwen3, tied=True, num_hidden_layers=5),
}


def make_vision_reference(family: str, seed: int = 0, **text: Any) -> Any:
    """A transformers model whose every weight is random, norms and biases included. text: other entries of
    its text_config."""
    torch.manual_seed(seed)
    model = VISION_FAMILIES[family](**text).eval()
    with torch.no_grad():
        for name, weight in weights_of(model).items():
            weight.normal_(1.0 if "norm" in name or "ln_q" in name else 0.0, 0.2)
    return model


def make_picture(height: int, width: int, random: torch.Generator) -> Picture:
    """height, width: in patches."""
    values = CHANNELS * FRAMES * SIZE * SIZE
    patches = torch.randn(height * width, values, generator=random)
    return Picture(patches_PX=patches, grid=(1, height, width))


def shown(pictures: list[Picture], words: list[Tensor]) -> Tensor:
    """Tokens of these words, with one of the pictures between each two."""
    parts = [words[0]]
    for picture, following in zip(pictures, words[1:], strict=True):
        stands = torch.full((picture.num_tokens(2),), PICTURE)
        parts += [torch.tensor([BEGIN]), stands, torch.tensor([END]), following]
    return torch.cat(parts)


def make_pictured_batch(seed: int = 1) -> SampleBatch:
    """Prompts with no, one and several pictures of different sizes; one begins with a picture. Of four texts
    of the last prompt one has a picture that a tool showed between what was drawn, and one drew the token
    that stands for pictures."""
    random = torch.Generator().manual_seed(seed)

    def words(count: int) -> Tensor:
        return torch.randint(0, WORDS, (count,), generator=random)

    def picture(height: int, width: int) -> Picture:
        return make_picture(height, width, random)

    pictures = [
        [],
        [picture(4, 6)],
        [picture(8, 2), picture(2, 2), picture(6, 10)],
    ]
    prompts = [
        words(7),
        shown(pictures[1], [words(0), words(4)]),
        shown(pictures[2], [words(3), words(0), words(2), words(5)]),
    ]
    drawn_picture = torch.cat([words(2), torch.tensor([PICTURE]), words(3)])
    responses = [words(4), words(6), words(5), words(0), drawn_picture, words(1), words(8)]
    group_of_B = torch.tensor([0, 1, 2, 2, 2, 1, 2])
    whole = list(responses)
    drawn = [torch.ones(len(response), dtype=torch.bool) for response in responses]
    text_pictures: list[list[Picture]] = [[] for _ in responses]
    text_pictures[6] = [picture(2, 8)]
    between = shown(text_pictures[6], [words(1), words(2)])
    whole[6] = torch.cat([responses[6][:3], between, responses[6][3:]])
    drawn[6] = torch.cat([drawn[6][:3], torch.zeros(len(between), dtype=torch.bool), drawn[6][3:]])
    near = [torch.randn(len(r), generator=random).mul(0.3).sub(4.0) for r in responses]
    return SampleBatch(
        prompts=prompts,
        group_of_B=group_of_B,
        responses=responses,
        fields={"rollout_logprobs": near, "old_logprobs": near, "reference_logprobs": near},
        scalars={"advantage": torch.randn(len(responses), generator=random)},
        full_responses=whole,
        drawn=drawn,
        pictures=pictures,
        text_pictures=text_pictures,
    )


def reference_inputs(batch: SampleBatch, sample: int) -> dict[str, Tensor]:
    """What transformers' model takes of one sample."""
    group, text = int(batch.group_of_B[sample]), batch.texts[sample]
    tokens = torch.cat([batch.prompts[group], text])
    stands = torch.cat([batch.prompts[group] == PICTURE, (text == PICTURE) & ~batch.drawn[sample]])
    inputs = {"input_ids": tokens[None], "mm_token_type_ids": stands.int()[None]}
    pictures = [*batch.pictures[group], *batch.text_pictures[sample]]
    if pictures:
        inputs["pixel_values"] = torch.cat([picture.patches_PX for picture in pictures])
        inputs["image_grid_thw"] = torch.tensor([picture.grid for picture in pictures])
    return inputs


def reference_logits(reference: Any, batch: SampleBatch, sample: int) -> Tensor:
    """Of one sample by itself, [tokens, V]. A token that stands for pictures and was drawn is text, which
    transformers tells by the id alone: embeddings are put in by hand there."""
    inputs = reference_inputs(batch, sample)
    tokens = inputs["input_ids"]
    fakes = (tokens == PICTURE) & (inputs["mm_token_type_ids"] == 0)
    if not fakes.any() or "pixel_values" not in inputs:
        logits: Tensor = reference(**inputs).logits[0]
        return logits
    base = reference.model
    embedded = base.get_input_embeddings()(tokens)
    positions, _ = base.get_rope_index(
        tokens, inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
    )
    stands = inputs["mm_token_type_ids"] == 1
    seen = base.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    embedded = embedded.masked_scatter(stands[..., None], torch.cat(seen.pooler_output))
    more = {}
    if getattr(seen, "deepstack_features", None):
        rows = [torch.cat(features) for features in seen.deepstack_features]
        more = {"visual_pos_masks": stands, "deepstack_visual_embeds": rows}
    hidden = base.language_model(inputs_embeds=embedded, position_ids=positions, **more)
    by_hand: Tensor = reference.lm_head(hidden.last_hidden_state)[0]
    return by_hand
