"""The built-in `tiny-vl`: a Qwen2.5-VL over bytes that transformers reads, the same each time, whether the
job then shows pictures or leaves them blank."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from rljob_api.check.load import read_job
from rljob_api.model.architecture import BUILTINS, read_shape
from rljob_api.spec.rljob import RLJob
from rljob_runtime.models.tiny import make_tiny
from rljob_runtime.models.tiny_recipe import VISION_CONFIG, Recipe
from rljob_runtime.task.pictures.processor import PictureProcessor
from rljob_runtime.task.tokenizer import (
    BOS_ID,
    BYTE_VOCABULARY,
    PICTURE_NAMES,
    ByteTokenizer,
    PictureByteTokenizer,
    load_tokenizer,
)

SHORT = Recipe(batch_size=8, check_every=2)
MAX_PARAMETERS = 3_000_000


def job(**drawn: Any) -> RLJob:
    spec: dict[str, Any] = {
        "steps": 1,
        "model": {
            "builtin": "tiny-vl",
            "vision": "frozen",
            "warmup": {"targetAccuracy": 1e-12, "maxSteps": 2},
        },
        "data": {"drawn": {"side": 56, "tasks": ["count"], **drawn}},
        "rewards": [{"name": "right", "type": "exact"}],
        "batch": {
            "globalBatchSize": 2,
            "samplesPerPrompt": 2,
            "maxPromptLength": 64,
            "maxResponseLength": 8,
        },
        "evaluation": {"prompts": 8},
    }
    return read_job(
        {
            "apiVersion": "rljob.io/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "tiny-vl"},
            "spec": spec,
        }
    )


def make(wanted: RLJob, cache: Path) -> Path:
    return make_tiny(
        wanted, base_dir=cache, cache_dir=cache, progress=lambda line: None, recipe=SHORT
    )


def test_it_is_a_model_that_transformers_reads_made_once_for_shown_and_blank_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_runtime.models.warmup.LEAST_ACCURACY", 0.0)

    made = make(job(), tmp_path / "one")
    again = make(job(), tmp_path / "other")

    assert make(job(blank=True), tmp_path / "one") == made != make(job(level=1), tmp_path / "one")
    weights = load_file(made / "model.safetensors")
    others = load_file(again / "model.safetensors")
    assert all(others[name].equal(weight) for name, weight in weights.items())
    loaded = AutoModelForImageTextToText.from_pretrained(made)
    assert sum(weight.numel() for weight in loaded.parameters()) < MAX_PARAMETERS
    assert any("visual" in name for name in weights)
    shown = AutoImageProcessor.from_pretrained(made, backend="pil")
    tokenizer = load_tokenizer(made)
    ours = PictureProcessor(made, tokenizer)
    assert ours.num_tokens((56, 56)) == 4
    assert shown.patch_size == VISION_CONFIG["vision_config"]["patch_size"]


def test_the_contract_knows_its_shape() -> None:
    assert read_shape(VISION_CONFIG, name="tiny-vl") == BUILTINS["tiny-vl"]


def test_its_tokenizer_has_the_tokens_of_pictures_beside_bytes() -> None:
    tokenizer = PictureByteTokenizer()
    begin, picture, end, _ = range(BYTE_VOCABULARY, BYTE_VOCABULARY + len(PICTURE_NAMES))
    text = f"a{PICTURE_NAMES[0]}{PICTURE_NAMES[1]}{PICTURE_NAMES[2]}é"

    ids = tokenizer.encode(text)

    assert ids == [BOS_ID, ord("a"), begin, picture, end, *"é".encode()]
    assert tokenizer.vocab_size == BYTE_VOCABULARY + 4
    assert tokenizer.decode(ids) == "aé"
    assert "".join(tokenizer.texts(ids[1:5])) == text[:-1]
    assert tokenizer.plain(PICTURE_NAMES[1]) == ByteTokenizer().plain(PICTURE_NAMES[1])
    assert tokenizer.continuation(text) == list(text.encode())
