"""Slices in parameters that engines keep several of them in: filled by runs, they are the engines' own."""

from collections.abc import Mapping

import pytest
import torch
from model_configs import SMALL
from reshards import SHAPES
from torch import Tensor

from rljob_api.model.architecture import Shape, read_shape
from rljob_api.model.tensors import tensors_of
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.boxes import Box
from rljob_plan.resharding.layouts import Layout, rollout_layout, update_layout
from rljob_plan.resharding.packing import Packed, packed_slices
from rljob_runtime.models.families import read_architecture
from rljob_runtime.update.update_megatron.weights import to_megatron
from rljob_runtime.weights.reshard.parcels import part


def weights_of(shape: Shape) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(3)
    return {
        tensor.name: torch.randn(tensor.shape, generator=random) for tensor in tensors_of(shape)
    }


def slices_of(whole: Mapping[str, Tensor], layout: Layout, device: int) -> dict[str, Tensor]:
    return {
        tensor.name: part(
            whole[tensor.name], Box(0, tensor.shape[0], 0, (*tensor.shape, 1)[1]), box
        )
        for tensor, box in layout.held(device)
    }


def filled(
    places: Mapping[str, Packed], slices: Mapping[str, Tensor], layer: int
) -> dict[str, Tensor]:
    """Parameters of a layer that is no layer of experts."""
    found: dict[str, Tensor] = {}
    for name, place in places.items():
        if not name.startswith(f"model.layers.{layer}."):
            continue
        key = f"{place.parameter}.{place.kind}"
        size = max(run.first + run.stop - run.start for run in place.runs)
        old = found.get(key, torch.empty(0, *slices[name].shape[1:]))
        new = torch.full((max(size, len(old)), *slices[name].shape[1:]), torch.nan)
        new[: len(old)] = old
        for run in place.runs:
            assert new[run.first : run.first + run.stop - run.start].isnan().all()
            new[run.first : run.first + run.stop - run.start] = slices[name][run.start : run.stop]
        found[key] = new
    return found


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_megatrons_parameters_are_runs_of_the_slices_of_tensor_ranks(family: str, tensor: int):
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
    config = SMALL | {"model_type": family, "architectures": [names[family]]}
    shape = read_shape(config, name="config.json")
    assert shape is not None
    whole, layout = (
        weights_of(shape),
        update_layout(shape, UpdateDegrees(data=1, tensor=tensor)),
    )
    megatron = dict(to_megatron(whole, read_architecture(config)))

    for rank in range(tensor):
        slices = slices_of(whole, layout, rank)
        found = filled(packed_slices(shape, layout.held(rank), "megatron"), slices, layer=2)

        qkv = megatron["model.layers.2.of_core.self_attention.linear_qkv.weight"].chunk(tensor)[
            rank
        ]
        assert torch.equal(found["self_attention.linear_qkv.weight"], qkv)
        assert ("self_attention.linear_qkv.bias" in found) == (family == "qwen2")
        gate, up = megatron["model.layers.2.of_core.mlp.linear_fc1.weight"].chunk(2)
        expected = torch.cat([gate.chunk(tensor)[rank], up.chunk(tensor)[rank]])
        assert torch.equal(found["mlp.linear_fc1.weight"], expected)


def test_vllms_parameters_follow_each_other_with_repeated_key_heads():
    shape = SHAPES["biases"]
    whole, layout = weights_of(shape), rollout_layout(shape, RolloutDegrees(data=1, tensor=4))

    for rank in range(4):
        slices = slices_of(whole, layout, rank)
        found = filled(packed_slices(shape, layout.held(rank), "vllm"), slices, layer=0)

        name = "model.layers.0.self_attn.{}_proj.{}"
        for kind in ("weight", "bias"):
            query = whole[name.format("q", kind)][rank : rank + 1]  # heads of one feature
            key, value = (whole[name.format(p, kind)][rank // 2 : rank // 2 + 1] for p in "kv")
            expected = torch.cat([query, key, value])
            assert torch.equal(found[f"self_attn.qkv_proj.{kind}"], expected)


def test_vllms_experts_are_stacks_that_begin_with_the_devices_first():
    shape = SHAPES["qwen3_moe"]
    layout = rollout_layout(shape, RolloutDegrees(data=4, expert=4))

    places = packed_slices(shape, layout.held(2), "vllm")

    inner = 4
    name = "model.layers.0.mlp.experts.{}.{}_proj.weight"
    assert [places[name.format(expert, "gate")].expert for expert in (6, 7, 8)] == [0, 1, 2]
    up = places[name.format(7, "up")]
    assert (up.parameter, up.kind, up.runs) == ("mlp.experts.w13", "weight", ((0, inner, inner),))
    assert places[name.format(8, "down")].parameter == "mlp.experts.w2"
    assert name.format(5, "gate") not in places


def test_latent_attention_has_parameters_of_its_own():
    shape = SHAPES["deepseek"]
    layout = rollout_layout(shape, RolloutDegrees(data=1))

    places = packed_slices(shape, layout.held(0), "vllm")

    assert not [name for name in places if "self_attn" in name]
    assert "model.layers.1.mlp.shared_experts.up_proj.weight" in places
