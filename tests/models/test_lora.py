"""Adapters on a decoder against a dense one whose weights are W + alpha / rank · B A."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import make_reference

from rljob_api.model.adapters import legal_targets
from rljob_api.spec.lora import Lora
from rljob_runtime.models.adapter_files import PREFIX, read_adapter, save_adapter
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.lora import WithoutAdapters, named_adapters
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.weights.held_policy import LocalPolicy, load_local_policy, shape_of

ALL = Lora(rank=3, alpha=6, target_modules=["all-linear"])
FAMILIES = ["llama-tied", "qwen2-tied", "qwen3-moe", "deepseek-v3"]
PEFTS_FAMILIES = FAMILIES[:3]  # of deepseek-v3, PEFT takes the dense layers' targets for experts'


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str], Path]:
    """Saves a family's random model."""

    def save(family: str) -> Path:
        make_reference(family).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


def adapted(path: Path, dtype: torch.dtype = torch.float32) -> tuple[LocalPolicy, Decoder]:
    """A policy whose adapters have learned something."""
    held = load_local_policy(path, UpdateRanks(), dtype=dtype, lora=ALL, seed=5)
    assert isinstance(held.model, Decoder)
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, adapter in held.full_adapters():
            adapter.copy_(torch.randn(adapter.shape, generator=random) * 0.1)
    return held, held.model


def said(model: Any, batch: SampleBatch) -> torch.Tensor:
    found: torch.Tensor = model.logprobs(batch, temperature=0.8).logprobs_T
    return found


def dense_like(held: LocalPolicy, path: Path) -> Decoder:
    """W + alpha / rank · B A by PEFT's formula, in a decoder without adapters, float64."""
    dense = load_decoder(path, dtype=torch.float64)
    adapters = dict(held.full_adapters())
    with torch.no_grad():
        for name, weight in dense.named_hf_parameters():
            stem = name.removesuffix(".weight")
            if (a := adapters.get(f"{stem}.lora_A.weight")) is not None:
                b = adapters[f"{stem}.lora_B.weight"]
                weight += ALL.alpha / ALL.rank * (b @ a)
    return dense


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_backward_are_those_of_the_merged_matrices(
    family: str, save: Callable[[str], Path], ragged_batch: SampleBatch
) -> None:
    path = save(family)
    held, model = adapted(path, torch.float64)
    dense = dense_like(held, path)

    logprobs_T, expected_T = said(model, ragged_batch), said(dense, ragged_batch)
    logprobs_T.sum().backward()
    expected_T.sum().backward()

    torch.testing.assert_close(logprobs_T, expected_T, rtol=1e-9, atol=1e-9)
    whole, scale = dict(dense.named_parameters()), ALL.alpha / ALL.rank
    trained = dict(model.trained_parameters())
    assert trained.keys() == dict(named_adapters(model)).keys()
    for name, adapter in trained.items():
        stem = name.rpartition(".lora_")[0]
        of_weight = whole[f"{stem}.weight"].grad
        a, b = (trained[f"{stem}.lora_{part}.weight"] for part in "AB")
        assert of_weight is not None and adapter.grad is not None
        expected = b.T @ of_weight if adapter is a else of_weight @ a.T
        torch.testing.assert_close(adapter.grad, scale * expected, rtol=1e-9, atol=1e-9, msg=name)
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_say_what_weights_with_adapters_say(
    family: str, save: Callable[[str], Path], ragged_batch: SampleBatch
) -> None:
    path = save(family)
    held, model = adapted(path)
    plain, changed = load_decoder(path, dtype=torch.float32), 0

    with torch.no_grad():
        own = dict(plain.named_hf_parameters())
        for name, weight in held.full_weights():
            changed += not own[name].equal(weight)
            own[name].copy_(weight)

    assert changed == len(dict(held.full_adapters())) / 2
    with torch.no_grad():
        torch.testing.assert_close(
            said(plain, ragged_batch), said(model, ragged_batch), rtol=1e-5, atol=1e-5
        )


def test_new_adapters_are_drawn_as_peft_draws_them_and_change_nothing(
    save: Callable[[str], Path], ragged_batch: SampleBatch
) -> None:
    path = save("qwen3")
    held = load_local_policy(path, UpdateRanks(), dtype=torch.float32, lora=Lora(), seed=5)
    again = load_local_policy(path, UpdateRanks(), dtype=torch.float32, lora=Lora(), seed=5)

    adapters = dict(held.full_adapters())
    assert {name.split(".")[-3] for name in adapters} == {"q_proj", "v_proj"}
    for name, adapter in adapters.items():
        assert dict(again.full_adapters())[name].equal(adapter)
        if "lora_B" in name:
            assert not adapter.any()
        else:
            bound = adapter.shape[1] ** -0.5  # Kaiming's, a = √5: √(6 / (1 + 5)) / √columns
            assert 0.9 * bound < adapter.abs().max() <= bound
    plain = load_decoder(path, dtype=torch.float32)
    assert said(held.model, ragged_batch).equal(said(plain, ragged_batch))


def test_a_reference_without_adapters_is_the_model_that_training_began_with(
    save: Callable[[str], Path], ragged_batch: SampleBatch
) -> None:
    path = save("qwen3")
    _, model = adapted(path)
    before = said(model, ragged_batch)

    with torch.no_grad():
        reference = said(WithoutAdapters(model), ragged_batch)

    assert reference.equal(said(load_decoder(path, dtype=torch.float32), ragged_batch))
    assert said(model, ragged_batch).equal(before)
    assert not reference.allclose(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_targets_every_matrix_that_a_job_may_name(
    family: str, save: Callable[[str], Path]
) -> None:
    path = save(family)
    held, _ = adapted(path)
    shape = shape_of(path)
    assert shape is not None

    named = {name.split(".")[-3] for name, _ in held.full_adapters()}

    assert named == set(legal_targets(shape))


def test_saved_adapters_come_back_bit_for_bit(save: Callable[[str], Path], tmp_path: Path) -> None:
    path = save("qwen3")
    held, _ = adapted(path)

    save_adapter(held.full_adapters(), ALL, base=path, folder=tmp_path / "adapter")

    expected = dict(held.full_adapters())
    stored = read_adapter(tmp_path / "adapter", {name: t.shape for name, t in expected.items()})
    assert stored.keys() == expected.keys()
    assert all(stored[name].equal(adapter) for name, adapter in expected.items())


@pytest.mark.parametrize("family", PEFTS_FAMILIES)
def test_peft_loads_saved_adapters_and_computes_the_same(
    family: str, save: Callable[[str], Path], tmp_path: Path, ragged_batch: SampleBatch
) -> None:
    peft = pytest.importorskip("peft")
    path = save(family)
    held, model = adapted(path)
    save_adapter(held.full_adapters(), ALL, base=path, folder=tmp_path / "adapter")

    from transformers import AutoModelForCausalLM

    from rljob_runtime.models.transformers_model import TransformersModel

    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")

    theirs = {n for n, _ in loaded.named_parameters() if "lora_" in n}
    ours = {PREFIX + n.replace(".weight", ".default.weight") for n, _ in held.full_adapters()}
    assert theirs == ours
    with torch.no_grad():
        expected_T = said(TransformersModel(loaded.merge_and_unload()), ragged_batch)
        torch.testing.assert_close(said(model, ragged_batch), expected_T, rtol=1e-4, atol=1e-5)
