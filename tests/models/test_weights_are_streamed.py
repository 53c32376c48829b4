"""Directories are read tensor by tensor and in part, experts one by one or in stacks."""

import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import make_reference, weights_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rljob_api.model.architecture import read_shape
from rljob_api.model.layout import RankShard, Slice, slices
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import hf_config, read_architecture
from rljob_runtime.models.loading import load_decoder, load_policy
from rljob_runtime.models.tensor_files import Box, TensorFiles
from rljob_runtime.models.weights import load_weights, save_hf, weights_checksum

EXPERT = "model.layers.1.mlp.experts.5."


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Saves a family's random model, with experts one by one or in stacks."""

    def save(family: str, *, stacked: bool = False) -> Path:
        reference = make_reference(family)
        reference.save_pretrained(tmp_path / "model")
        if stacked:
            save_hf(
                weights_of(reference).items(), folder=tmp_path / "model", source=tmp_path / "model"
            )
        return tmp_path / "model"

    return save


def upper_half(name: str, shape: torch.Size) -> Box:
    """The rows that the second of two ranks would hold of a matrix; vectors whole."""
    rows = slice(shape[0] // 2, shape[0]) if len(shape) > 1 else slice(0, shape[0])
    return (rows, *(slice(0, size) for size in shape[1:]))


def only_one_expert(name: str, shape: torch.Size) -> Box | None:
    return tuple(slice(0, n) for n in shape) if name == EXPERT + "down_proj.weight" else None


@pytest.mark.parametrize("stacked", [False, True])
def test_a_rank_loads_its_half_of_every_matrix(stacked: bool, save: Callable[..., Path]) -> None:
    path = save("qwen3-moe", stacked=stacked)
    whole = dict(load_policy(path, dtype=torch.float32).named_hf_parameters())
    held = {name: torch.empty(w[upper_half(name, w.shape)].shape) for name, w in whole.items()}

    load_weights(held, path, box_of=upper_half)

    assert held[EXPERT + "up_proj.weight"].shape == (10, 32)
    for name, weight in whole.items():
        assert held[name].equal(weight[upper_half(name, weight.shape)]), name


def test_a_rank_loads_only_the_tensors_that_it_holds(save: Callable[..., Path]) -> None:
    path = save("qwen3-moe")
    held = {EXPERT + "down_proj.weight": torch.empty(32, 20)}

    load_weights(held, path, box_of=only_one_expert)

    whole = dict(load_policy(path, dtype=torch.float32).named_hf_parameters())
    (name,) = held
    assert held[name].equal(whole[name])


@pytest.mark.parametrize("family", ["qwen2", "qwen3-moe-some-dense", "deepseek-v2", "deepseek-v3"])
@pytest.mark.parametrize("experts", [(0, 1), (1, 2)])
def test_every_rank_of_a_layout_loads_its_slices(
    family: str, experts: tuple[int, int], save: Callable[..., Path]
) -> None:
    path = save(family)
    whole = dict(load_policy(path, dtype=torch.float32).named_hf_parameters())
    shape = read_shape(read_config(path), name="config.json")
    assert shape is not None
    rank = RankShard.of_stages(shape, (1,), 2, tensor=(1, 2), expert=experts)
    parts = {piece.tensor.name: box_of(piece) for piece in slices(shape, rank)}
    held = {name: torch.empty(whole[name][box].shape) for name, box in parts.items()}

    load_weights(held, path, box_of=lambda name, _: parts.get(name))

    assert 0 < len(held) < len(whole)
    for name, box in parts.items():
        assert held[name].equal(whole[name][box]), name


def box_of(piece: Slice) -> Box:
    cuts = [slice(0, size) for size in piece.tensor.shape]
    cuts[piece.axis] = slice(piece.start, piece.stop)
    return tuple(cuts)


def test_one_tensor_is_in_memory_beside_the_model(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save("deepseek-v3", stacked=True)
    read = TensorFiles.read
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def counted(files: TensorFiles, name: str, part: Box | None = None) -> torch.Tensor:
        nonlocal most
        tensor = read(files, name, part)
        alive.append(weakref.ref(tensor))
        most = max(most, sum(reference() is not None for reference in alive))
        return tensor

    monkeypatch.setattr(TensorFiles, "read", counted)

    decoder = load_decoder(path, dtype=torch.float32)

    assert len(alive) == len(dict(decoder.named_hf_parameters())) > 50
    assert most == 1


@pytest.mark.parametrize("family", ["qwen3-moe", "deepseek-v2", "deepseek-v3"])
def test_stacks_of_experts_are_read_as_the_experts_in_them(
    family: str, save: Callable[..., Path]
) -> None:
    single = weights_checksum(load_policy(save(family), dtype=torch.float32).named_hf_parameters())

    path = save(family, stacked=True)

    assert "model.layers.1.mlp.experts.gate_up_proj" in load_file(path / "model.safetensors")
    assert single == weights_checksum(load_policy(path, dtype=torch.float32).named_hf_parameters())


def test_a_decoder_is_saved_in_stacks_that_transformers_reads(tmp_path: Path) -> None:
    reference = make_reference("deepseek-v3")
    config = {**reference.config.to_dict(), "architectures": ["DeepseekV3ForCausalLM"]}
    decoder = Decoder(read_architecture(config))
    decoder.initialize(3)

    stacks = chain(decoder.named_parameters(), decoder.named_buffers())
    save_hf(stacks, folder=tmp_path / "m", config=hf_config(decoder.architecture))

    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert weights_checksum(weights_of(loaded).items()) == weights_checksum(
        chain(decoder.named_parameters(), decoder.named_buffers())
    )


def test_wrong_experts_are_all_named_before_anything_changes(save: Callable[..., Path]) -> None:
    path = save("qwen3-moe")
    decoder = load_decoder(path, dtype=torch.float32)
    before = weights_checksum(decoder.named_hf_parameters())
    weights = load_file(path / "model.safetensors")
    del weights[EXPERT + "gate_proj.weight"]
    weights[EXPERT + "up_proj.weight"] = torch.zeros(3, 3)
    weights[EXPERT.replace(".5.", ".8.") + "up_proj.weight"] = torch.zeros(20, 32)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(WeightsError) as caught:
        load_weights(dict(decoder.named_hf_parameters()), path)

    message = str(caught.value)
    assert "(3 tensors)" in message
    assert f"{EXPERT}gate_proj.weight is missing" in message
    assert f"{EXPERT}up_proj.weight is [3, 3], not [20, 32]" in message
    assert "experts.8.up_proj.weight is not expected" in message
    assert weights_checksum(decoder.named_hf_parameters()) == before


def test_layers_that_predict_further_tokens_are_left_out(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    path = save("deepseek-v3")
    expected = weights_checksum(load_policy(path, dtype=torch.float32).named_hf_parameters())
    weights = load_file(path / "model.safetensors")
    weights["model.layers.3.eh_proj.weight"] = torch.zeros(32, 64)
    weights["model.layers.3.input_layernorm.weight"] = torch.zeros(32)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    policy = load_policy(path, dtype=torch.float32)

    assert read_config(path)["num_nextn_predict_layers"] == 1
    assert weights_checksum(policy.named_hf_parameters()) == expected
    save_hf(policy.named_hf_parameters(), folder=tmp_path / "copy", source=path)
    assert read_config(tmp_path / "copy")["num_nextn_predict_layers"] == 0


def test_mixed_types_survive_a_round_trip_bitwise(tmp_path: Path) -> None:
    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        yield "odd", torch.arange(3, dtype=torch.bfloat16)
        yield "wide", torch.linspace(0, 1, 5, dtype=torch.float64)
        yield "scalar", torch.tensor(7.0)
        yield "empty", torch.zeros(0, 4)
        yield "mask", torch.tensor([True, False])

    save_hf(weights(), folder=tmp_path / "m", config={"model_type": "any"})

    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert weights_checksum(stored.items()) == weights_checksum(weights())
