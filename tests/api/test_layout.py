"""Which rank holds what: names and shapes as transformers has them, and every element once."""

import json
import re
from collections import Counter
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_configs import CONFIGS, SMALL
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_api.model.architecture import Shape, read_shape
from rljob_api.model.layout import RankShard, Slice, slices
from rljob_api.model.tensors import EMBEDDING, Cut, tensors_of

PAPER = Path(__file__).parents[2] / "examples" / "paper" / "models"
STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


def shape_of(config: dict[str, Any]) -> Shape:
    shape = read_shape(SMALL | config, name="config.json")
    assert shape is not None
    return shape


def tensors_in_transformers(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes as its checkpoints have them: an expert's matrices are tensors of their own."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(SMALL | config)))
    found: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.state_dict().items():
        stack = STACK.fullmatch(name)
        if stack is None:
            found[name] = tuple(tensor.shape)
            continue
        experts, rows, columns = tensor.shape
        joined = stack[2] == "gate_up_proj"
        for expert, part in product(
            range(experts), ("gate_proj", "up_proj")[: 2 * joined] or ("down_proj",)
        ):
            size = (rows // 2, columns) if joined else (rows, columns)
            found[f"{stack[1]}.{expert}.{part}.weight"] = size
    if model.config.tie_word_embeddings:
        del found["lm_head.weight"]
    return found


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_names_and_shapes_are_those_of_transformers(config: dict[str, Any]) -> None:
    tensors = list(tensors_of(shape_of(config)))

    assert {tensor.name: tensor.shape for tensor in tensors} == tensors_in_transformers(config)
    assert len({tensor.name for tensor in tensors}) == len(tensors)


def elements(part: Slice) -> set[tuple[str, int]]:
    """The places along the slice's axis."""
    return {(part.tensor.name, place) for place in range(part.start, part.stop)}


@given(
    config=st.sampled_from(CONFIGS),
    tensors=st.sampled_from([1, 2, 4]),
    number=st.integers(1, 3),
    experts=st.sampled_from([1, 2, 4, 8]),
)
def test_the_ranks_of_a_replica_hold_everything_once_but_what_all_repeat(
    config: dict[str, Any], tensors: int, number: int, experts: int
) -> None:
    shape = shape_of(config)
    experts = experts if shape.experts else 1
    held: Counter[tuple[str, int]] = Counter()
    for stage, tensor, expert in product(range(number), range(tensors), range(experts)):
        part = RankShard.of_stages(
            shape, (stage,), number, tensor=(tensor, tensors), expert=(expert, experts)
        )
        for piece in slices(shape, part):
            assert piece.stop > piece.start, piece
            held.update(elements(piece))

    for tensor_spec in tensors_of(shape):
        times = experts * tensors
        if tensor_spec.expert is not None:
            times = tensors if experts > 1 else 1
        elif tensor_spec.cut is Cut.KEY_HEADS:
            times = experts * max(1, tensors // shape.kv_heads)
        elif tensor_spec.cut is not Cut.WHOLE:
            times = experts
        if tensor_spec.name == EMBEDDING and shape.tied and number > 1:
            times *= 2
        by_expert = tensor_spec.expert is not None and experts > 1
        columns = tensor_spec.cut in (Cut.COLUMNS, Cut.HEAD_COLUMNS)
        axis = 1 if columns and not by_expert else 0
        counts = {held.pop((tensor_spec.name, i), 0) for i in range(tensor_spec.shape[axis])}
        assert counts == {times}, tensor_spec
    assert not held


def test_a_key_head_is_with_the_query_heads_that_read_it() -> None:
    shape = shape_of({"model_type": "qwen3", "head_dim": 8, "num_attention_heads": 8})

    for rank in range(4):
        part = RankShard.of_stages(shape, tensor=(rank, 4))
        found = {piece.tensor.name.split("layers.0.")[-1]: piece for piece in slices(shape, part)}
        queries, keys = found["self_attn.q_proj.weight"], found["self_attn.k_proj.weight"]
        repeats = shape.heads // shape.kv_heads
        read = {place // 8 // repeats for place in range(queries.start, queries.stop)}
        assert read <= {place // 8 for place in range(keys.start, keys.stop)}
        assert keys.stop - keys.start == 8


def test_a_virtual_pipeline_holds_several_stages() -> None:
    shape = shape_of({"model_type": "llama", "num_hidden_layers": 7})

    parts = [RankShard.of_stages(shape, (stage, stage + 2), 4) for stage in range(2)]

    assert [part.layers for part in parts] == [(0, 1, 4, 5), (2, 3, 6)]
    assert [(part.first, part.last) for part in parts] == [(True, False), (False, True)]


def test_every_expert_of_the_671b_model_is_on_as_many_of_384_ranks_as_the_tensor_degree() -> None:
    config = json.loads((PAPER / "deepseek-r1-671b" / "config.json").read_text())
    shape = read_shape(config, name="config.json")
    assert shape is not None

    held = 0
    for stage, tensor, expert in product(range(6), range(4), range(16)):
        part = RankShard.of_stages(shape, (stage,), 6, tensor=(tensor, 4), expert=(expert, 16))
        held += sum(prod(s.shape) for s in slices(shape, part) if s.tensor.expert is not None)

    assert held == 4 * shape.total().experts
