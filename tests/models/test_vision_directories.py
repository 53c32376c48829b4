"""Directories of vision-language models in and out: names, older files, the tower beside the decoder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import weights_of
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForImageTextToText
from typer.testing import CliRunner
from vision_models import (
    VISION_FAMILIES,
    make_pictured_batch,
    make_vision_reference,
    reference_inputs,
)

from rljob_api.model.architecture import read_shape
from rljob_api.spec.lora import Lora
from rljob_runtime.cli.main import app
from rljob_runtime.errors import ConfigError, WeightsError
from rljob_runtime.models.adapter_files import read_adapter, save_adapter
from rljob_runtime.models.config import UnsupportedArchitecture, read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture, scorer_config
from rljob_runtime.models.loading import load_decoder, load_scorer
from rljob_runtime.models.tower import VisionTower, as_matrix
from rljob_runtime.models.vision.names import module_name
from rljob_runtime.models.weights import save_hf
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.weights.held_policy import load_local_policy

Save = Callable[[str], tuple[Any, Path]]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """A family's random model, and its directory as transformers saves it."""

    def save(family: str) -> tuple[Any, Path]:
        reference = make_vision_reference(family)
        reference.save_pretrained(tmp_path / "model")
        return reference, tmp_path / "model"

    return save


def logits_of(reference: Any, sample: int = 6) -> Tensor:
    """Of a sample with pictures in its prompt and behind it."""
    with torch.no_grad():
        found: Tensor = reference(**reference_inputs(make_pictured_batch(), sample)).logits
    return found


def logprobs_of(path: Path, *, tower: bool = True) -> Tensor:
    decoder = load_decoder(path, dtype=torch.float32)
    if tower:
        decoder.show(VisionTower.from_path(path, dtype=torch.float32))
    with torch.no_grad():
        return decoder.logprobs(make_pictured_batch(), temperature=1.0).logprobs_T


def tower_of(reference: Any) -> dict[str, Tensor]:
    return {n: w for n, w in weights_of(reference).items() if n.startswith("model.visual.")}


@pytest.mark.parametrize("family", sorted(VISION_FAMILIES))
def test_the_shape_counts_as_many_parameters_as_transformers(family: str, save: Save) -> None:
    reference, path = save(family)

    shape = read_shape(read_config(path), name="config.json")

    assert shape is not None
    tower = tower_of(reference)
    assert shape.tower == sum(weight.numel() for weight in tower.values())
    assert shape.vision is not None
    assert dict(shape.vision.tensors()) == {
        name.removeprefix("model."): tuple(as_matrix(weight).shape)
        for name, weight in tower.items()
    }
    whole = sum(weight.numel() for weight in weights_of(reference).values())
    assert shape.total().total + shape.tower == whole


@pytest.mark.parametrize("family", sorted(VISION_FAMILIES))
def test_what_is_trained_goes_out_beside_the_tower_that_came_in(
    family: str, save: Save, tmp_path: Path
) -> None:
    reference, path = save(family)
    decoder = load_decoder(path, dtype=torch.float32)
    with torch.no_grad():
        for _, weight in decoder.trained_parameters():
            weight.mul_(1.25)
        for name, weight in weights_of(reference).items():
            if "visual" not in name:
                weight.mul_(1.25)

    save_hf(decoder.named_hf_parameters(), source=path, folder=tmp_path / "out")

    loaded: Any = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    assert loaded.config.tie_word_embeddings == family.endswith("tied")
    for name, weight in weights_of(reference).items():
        assert weights_of(loaded)[name].equal(weight), name
    assert logits_of(loaded).equal(logits_of(reference))
    assert sorted(load_file(tmp_path / "out" / "model.safetensors")) == sorted(
        load_file(path / "model.safetensors")
    )


def test_a_trained_tower_goes_out_as_it_is(save: Save, tmp_path: Path) -> None:
    _, path = save("qwen3-vl")
    decoder = load_decoder(path, dtype=torch.float32)
    decoder.show(VisionTower.from_path(path, dtype=torch.float32, trained=True))
    with torch.no_grad():
        for _, weight in decoder.trained_parameters():
            weight.mul_(1.25)

    save_hf(decoder.named_hf_parameters(), source=path, folder=tmp_path / "out")

    before = load_file(path / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(after[name].equal(1.25 * before[name]) for name in before)
    with torch.no_grad():
        ours = decoder.logprobs(make_pictured_batch(), temperature=1.0).logprobs_T
    torch.testing.assert_close(logprobs_of(tmp_path / "out"), ours, atol=1e-5, rtol=0)


def nest(names: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    return {module_name(name, config): weight for name, weight in names.items()}


def test_files_with_names_of_nested_modules_are_read(save: Save) -> None:
    _, path = save("qwen2.5-vl")
    expected = logprobs_of(path)
    file, config = path / "model.safetensors", read_config(path)

    save_file(nest(load_file(file), config), file, metadata={"format": "pt"})

    assert any(name.startswith("model.language_model.") for name in load_file(file))
    assert logprobs_of(path).equal(expected)


@pytest.mark.parametrize("tied", [False, True])
def test_a_config_of_before_text_had_a_part_of_its_own_is_read(tied: bool, save: Save) -> None:
    reference, path = save("qwen2.5-vl-tied" if tied else "qwen2.5-vl")
    expected, config = logprobs_of(path), read_config(path)
    text: Any = config.pop("text_config")
    rope = text.pop("rope_parameters")
    old = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    kept = {name: text[name] for name in text if name not in ("model_type", "layer_types")}

    flat = {**kept, **config, "rope_scaling": old, "rope_theta": rope["rope_theta"]}
    (path / "config.json").write_text(json.dumps(flat))

    assert logprobs_of(path).equal(expected)
    loaded: Any = AutoModelForImageTextToText.from_pretrained(path)
    assert logits_of(loaded).equal(logits_of(reference))
    shape = read_shape(flat, name="config.json")
    assert shape is not None
    assert shape.tied == tied


@pytest.mark.parametrize("family", ["qwen2.5-vl-tied", "qwen3-vl"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_has_the_tower(family: str, dtype: str, save: Save, tmp_path: Path) -> None:
    reference, path = save(family)

    done = CliRunner().invoke(app, ["export", str(path), str(tmp_path / "out"), "--dtype", dtype])

    assert done.exit_code == 0, done.output
    loaded: Any = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    assert loaded.dtype is getattr(torch, dtype)
    for name, weight in weights_of(reference).items():
        assert weights_of(loaded)[name].equal(weight.to(loaded.dtype)), name


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl-tied"])
def test_peft_loads_adapters_of_the_decoder_alone(family: str, save: Save, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    reference, path = save(family)
    lora = Lora(rank=3, alpha=6, target_modules=["all-linear"])
    held = load_local_policy(path, UpdateRanks(), dtype=torch.float32, lora=lora, seed=5)
    with torch.no_grad():
        for _, adapter in held.full_adapters():
            adapter.copy_(torch.randn(adapter.shape) * 0.1)

    save_adapter(held.full_adapters(), lora, base=path, folder=tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(reference, tmp_path / "adapter")

    adapters = dict(held.full_adapters())
    assert len([n for n, _ in loaded.named_parameters() if "lora_" in n]) == len(adapters)
    save_hf(held.full_weights(), source=path, folder=tmp_path / "merged")
    merged: Any = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged")
    theirs = loaded.merge_and_unload().eval()
    torch.testing.assert_close(logits_of(theirs), logits_of(merged), atol=1e-4, rtol=1e-4)
    stored = read_adapter(tmp_path / "adapter", {n: tuple(t.shape) for n, t in adapters.items()})
    assert all(stored[name].equal(adapter) for name, adapter in adapters.items())


def test_what_lacks_in_the_tower_is_told_when_it_is_read(save: Save) -> None:
    _, path = save("qwen3-vl")
    weights = load_file(path / "model.safetensors")
    del weights["model.visual.pos_embed.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    assert isinstance(load_decoder(path, dtype=torch.float32), Decoder)
    with pytest.raises(WeightsError, match=r"visual\.pos_embed\.weight is missing"):
        VisionTower.from_path(path, dtype=torch.float32)


@pytest.mark.parametrize(
    ("family", "change", "told"),
    [
        ("qwen3-vl", {"mrope_section": [4, 2, 1]}, "add up to 8, half of head_dim=16"),
        ("qwen2.5-vl", {"mrope_section": [2, 2]}, "is not three numbers of pairs"),
    ],
)
def test_sections_that_are_no_head_are_named(
    family: str, change: dict[str, Any], told: str, save: Save
) -> None:
    config: dict[str, Any] = read_config(save(family)[1])
    config["text_config"]["rope_parameters"] |= change

    with pytest.raises(ConfigError, match=told):
        read_architecture(config)


def test_a_window_of_attention_is_refused_by_name(save: Save) -> None:
    config: dict[str, Any] = read_config(save("qwen2.5-vl")[1])
    config["text_config"] |= {"use_sliding_window": True, "sliding_window": 8}

    with pytest.raises(UnsupportedArchitecture, match="sliding_window=8"):
        read_architecture(config)


@pytest.mark.parametrize("family", sorted(VISION_FAMILIES))
def test_a_model_with_a_tower_is_a_critic_of_what_transformers_sees(
    family: str, save: Save, tmp_path: Path
) -> None:
    reference, path = save(family)
    batch, sample = make_pictured_batch(), 2  # whose prompt has three pictures
    critic, tower = (
        load_scorer(path, dtype=torch.float32),
        VisionTower.from_path(path, dtype=torch.float32),
    )
    critic.show(tower)

    with torch.no_grad():
        untrained = critic.logprobs(batch, temperature=1.0).logprobs_T
        critic.score.weight.copy_(torch.linspace(-1, 1, critic.score.weight.shape[1]))
        values = critic.logprobs(batch, temperature=1.0).logprobs_T
        hidden = reference.model(**reference_inputs(batch, sample)).last_hidden_state[0]

    assert not untrained.any()
    begins, count = len(batch.prompts[2]) - 1, len(batch.responses[sample])
    expected = (hidden @ critic.score.weight[0])[begins : begins + count]
    torch.testing.assert_close(batch.split_by_sample(values)[sample], expected, atol=2e-5, rtol=0)

    config = scorer_config(read_config(path), critic.architecture)
    save_hf(critic.named_hf_parameters(), source=path, config=config, folder=tmp_path / "critic")
    again = load_scorer(tmp_path / "critic", dtype=torch.float32)
    again.show(VisionTower.from_path(tmp_path / "critic", dtype=torch.float32))
    with torch.no_grad():
        assert again.logprobs(batch, temperature=1.0).logprobs_T.equal(values)
    shape = read_shape(read_config(tmp_path / "critic"), name="config.json")
    assert shape is not None and shape.scores and shape.tower
