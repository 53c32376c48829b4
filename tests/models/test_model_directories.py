"""Hugging Face directories in and out, and what is said about broken ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import LONGROPE, config_of, make_reference, weights_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rljob_runtime.errors import ConfigError, WeightsError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.expert_names import split_experts
from rljob_runtime.models.families import hf_config, read_architecture
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.transformers_model import TransformersModel
from rljob_runtime.models.weights import load_weights_into, read_weights, save_hf, weights_checksum


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An untied Llama as transformers saves it."""
    make_reference("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_every_family_that_transformers_saves_is_loaded(family: str, tmp_path: Path) -> None:
    reference = make_reference(family)
    reference.save_pretrained(tmp_path)

    policy = load_policy(tmp_path, dtype=torch.float32)

    assert isinstance(policy, Decoder)
    assert weights_checksum(policy.named_hf_parameters()) == weights_checksum(
        split_experts(weights_of(reference).items())
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": 2**31 - 1}, "no memory for|do not fit its config.json"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 .* is more than 1024"),
        ({"architectures": ["SomeForCausalLM"], "hidden_size": "x"}, "loaded by transformers"),
        ({"architectures": ["SomeForCausalLM"], "model_type": "x"}, "loaded by transformers"),
    ],
)
def test_a_config_that_was_spoiled_is_named(
    directory: Path, changes: dict[str, Any], told: str
) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    with pytest.raises((ConfigError, WeightsError), match=told):
        load_policy(directory, dtype=torch.float32)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    reference = make_reference("qwen3")
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1

    policy = load_policy(tmp_path, dtype=torch.float32)

    assert weights_checksum(policy.named_hf_parameters()) == weights_checksum(
        split_experts(weights_of(reference).items())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saving_and_loading_is_bitwise(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    reference = make_reference(family)
    reference.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    policy = load_policy(tmp_path / "model", dtype=dtype)

    save_hf(policy.named_hf_parameters(), source=tmp_path / "model", folder=tmp_path / "copy")

    again = load_policy(tmp_path / "copy", dtype=dtype)
    assert weights_checksum(again.named_hf_parameters()) == weights_checksum(
        policy.named_hf_parameters()
    )
    assert (tmp_path / "copy" / "tokenizer.json").read_text() == "{}"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "model"]


def test_transformers_reads_what_is_saved(family: str, tmp_path: Path) -> None:
    reference = make_reference(family)
    architecture = read_architecture(config_of(reference))
    tokens = torch.arange(20)[None]

    save_hf(weights_of(reference).items(), folder=tmp_path / "m", config=hf_config(architecture))

    again = AutoModelForCausalLM.from_pretrained(tmp_path / "m", experts_implementation="eager")
    assert read_architecture(read_config(tmp_path / "m")) == architecture
    torch.testing.assert_close(again(tokens).logits, reference(tokens).logits, atol=1e-5, rtol=0)


def test_saving_replaces_an_older_directory(directory: Path, tmp_path: Path) -> None:
    policy = load_policy(directory, dtype=torch.float32)
    target = tmp_path / "out"
    target.mkdir()
    (target / "stale.txt").write_text("old")

    save_hf(policy.named_hf_parameters(), source=directory, folder=target)

    assert not (target / "stale.txt").exists()
    assert read_weights(target).keys() == read_weights(directory).keys()


def test_a_failed_save_leaves_the_older_directory(directory: Path, tmp_path: Path) -> None:
    before = sorted(p.name for p in directory.iterdir())

    with pytest.raises(TypeError):
        save_hf([("a", torch.zeros(1))], folder=directory, config={"bad": object()})

    assert sorted(p.name for p in directory.iterdir()) == before
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        load_policy(tmp_path, dtype=torch.float32)


def test_a_config_that_is_not_json_is_named(directory: Path) -> None:
    (directory / "config.json").write_text("{")

    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        load_policy(directory, dtype=torch.float32)


def test_missing_safetensors_are_named(directory: Path) -> None:
    (directory / "model.safetensors").unlink()

    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        load_policy(directory, dtype=torch.float32)


def test_a_cut_file_is_named(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])

    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read"):
        load_policy(directory, dtype=torch.float32)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make_reference("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()

    with pytest.raises(WeightsError, match=shard.name):
        load_policy(tmp_path, dtype=torch.float32)


def test_all_wrong_tensors_are_named_at_once(directory: Path) -> None:
    break_weights(directory)

    with pytest.raises(WeightsError) as caught:
        load_policy(directory, dtype=torch.float32)

    message = str(caught.value)
    assert "model.norm.weight is missing" in message
    assert "lm_head.weight is missing" in message
    assert "extra.weight is not expected" in message
    assert "model.layers.0.mlp.up_proj.weight is [2], not [48, 32]" in message
    assert "4 tensors" in message


def test_a_wrong_directory_leaves_a_loaded_model_as_it_was(directory: Path) -> None:
    policy = load_policy(directory, dtype=torch.float32)
    before = weights_checksum(policy.named_hf_parameters())
    break_weights(directory)

    with pytest.raises(WeightsError):
        load_weights_into(policy, directory)

    assert weights_checksum(policy.named_hf_parameters()) == before


def test_weights_are_loaded_into_a_model(directory: Path, tmp_path: Path) -> None:
    other = make_reference("llama", seed=9)
    other.save_pretrained(tmp_path / "other")
    policy = load_policy(directory, dtype=torch.float32)

    load_weights_into(policy, tmp_path / "other")

    assert weights_checksum(policy.named_hf_parameters()) == weights_checksum(
        other.named_parameters()
    )


def test_other_architectures_are_left_to_transformers(directory: Path) -> None:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    config["rope_parameters"] = LONGROPE
    (directory / "config.json").write_text(json.dumps(config))

    assert isinstance(load_policy(directory, dtype=torch.float32), TransformersModel)


def test_the_checksum_sees_values_names_types_and_shapes_but_no_order() -> None:
    a, b = torch.arange(6.0), torch.ones(2, 3)
    base = weights_checksum([("a", a), ("b", b)])

    assert weights_checksum([("b", b), ("a", a)]) == base
    assert weights_checksum([("a", a.clone()), ("b", b.T.contiguous().T)]) == base
    changed = a.clone()
    changed[3] += 1e-6
    others = [
        [("a", changed), ("b", b)],
        [("b", a), ("a", b)],
        [("a", a.double()), ("b", b)],
        [("a", a), ("b", b.view(3, 2))],
        [("a", a)],
    ]
    assert base not in [weights_checksum(other) for other in others]
    assert weights_checksum([("a", a.bfloat16())]) == weights_checksum(
        [("a", a)], dtype=torch.bfloat16
    )


def break_weights(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    del weights["model.norm.weight"], weights["lm_head.weight"]
    weights["model.layers.0.mlp.up_proj.weight"] = torch.zeros(2)
    weights["extra.weight"] = torch.zeros(1)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
