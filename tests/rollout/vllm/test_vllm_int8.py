"""vLLM with the matrices of its layers in 8 bits, against a reference whose matrices are rounded by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_rank
from vllm_model import EOS, small_model

from rljob_runtime.errors import WeightsError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling
from rljob_runtime.rollout.rollout_vllm import VllmRollout
from rljob_runtime.rollout.sync_probe import check_probe, probe_gap
from rljob_runtime.weights.held_policy import FullPolicy
from rljob_runtime.weights.weight_sync import WeightSync

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]

MAX_LENGTH = 64
PROMPT = [257, 10, 20, 30]
SEQUENCES = [[257, 10, 20, 30, 7], [257, 99, 3], [257, *range(40)]]


def saved(folder: Path, *, seed: int = 0, initializer_range: float = 0.2) -> Path:
    small_model(seed=seed, initializer_range=initializer_range).save_pretrained(folder)
    return folder


def rounded(path: Path) -> torch.nn.Module:
    """The saved model with each layer's matrix in steps of its row's largest value ÷ 127."""
    model: torch.nn.Module = type(small_model()).from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, part in model.named_modules():
            if isinstance(part, torch.nn.Linear) and name != "lm_head":
                step = part.weight.abs().amax(1, keepdim=True) / 127
                part.weight.copy_((part.weight / step).round() * step)
    return model


def expected(model: torch.nn.Module, sequence: list[int]) -> list[float]:
    with torch.no_grad():
        logprobs_TV = model(torch.tensor([sequence])).logits[0, :-1].log_softmax(-1)
    found: list[float] = logprobs_TV.gather(-1, torch.tensor(sequence[1:])[:, None])[:, 0].tolist()
    return found


def linear_layers(worker: Any) -> list[tuple[str, torch.dtype, torch.dtype]]:
    """By vLLM's worker: names and types of what holds matrices of layers."""
    return [
        (name, part.weight.dtype, part.weight_scale.dtype)
        for name, part in worker.get_model().named_modules()
        if name.endswith("_proj")
    ]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[VllmRollout]:
    engine = VllmRollout(
        path, dtype=torch.float32, max_sequences=8, max_length=MAX_LENGTH, seed=1, int8=True
    )
    yield engine
    engine.close()


def test_logprobs_are_those_of_a_model_that_is_rounded_by_hand(
    engine: VllmRollout, path: Path
) -> None:
    how = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_response_length=12, eos_ids=(EOS,))
    group = PromptGroup(group="g", token_ids=PROMPT, uids=["0", "1", "2"], seeds=[1, 2, 3])
    model = rounded(path)

    samples = [sample for chunk in engine.generate([group], how) for sample in chunk]

    assert len(samples) == 3
    for sample in samples:
        wanted = expected(model, PROMPT + sample.token_ids)[len(PROMPT) - 1 :]
        assert sample.logprobs == pytest.approx(wanted, abs=1e-4)


def test_each_matrix_of_a_layer_is_held_in_8_bits(engine: VllmRollout) -> None:
    (layers,) = engine._engine.collective_rpc(linear_layers)

    assert len(layers) == 8  # two layers of qkv, o, gate and up, down
    assert {(matrix, scales) for _, matrix, scales in layers} == {(torch.int8, torch.float32)}


def test_weights_of_a_new_version_are_rounded_anew(
    engine: VllmRollout, path: Path, tmp_path: Path
) -> None:
    other = saved(tmp_path, seed=7)
    old, new = (load_policy(p, dtype=torch.float32) for p in (path, other))

    engine.load_weights(new.named_hf_parameters(), version=1)
    changed = engine.probe(SEQUENCES)
    engine.load_weights(old.named_hf_parameters(), version=2)
    restored = engine.probe(SEQUENCES)

    for weights, found in ((other, changed), (path, restored)):
        model = rounded(weights)
        for sequence, logprobs in zip(SEQUENCES, found, strict=True):
            assert logprobs == pytest.approx(expected(model, sequence), abs=1e-4)


def test_a_sync_allows_for_rounding_and_for_no_stale_weights(
    engine: VllmRollout, path: Path, tmp_path: Path
) -> None:
    """The initial range is a language model's: rounding moves its log-probs little."""
    stale, policy = (
        load_policy(
            saved(tmp_path / str(seed), seed=seed, initializer_range=0.05), dtype=torch.float32
        )
        for seed in (3, 4)
    )
    sync = WeightSync(
        policy=FullPolicy(model=policy),
        rollout=engine,
        dtype=torch.float32,
        synced=torch.float32,
        vocab_size=259,
        max_length=MAX_LENGTH,
        int8=True,
    )

    sync.run(version=3)
    engine.load_weights(stale.named_hf_parameters(), version=4)
    gap = probe_gap(engine, policy, vocab_size=259, max_length=MAX_LENGTH)

    with pytest.raises(WeightsError, match=r"off by .* where torch\.int8 explains 0\.25"):
        check_probe(gap, dtype=torch.int8, version=4)


@pytest.mark.nightly
def test_devices_that_share_a_model_round_as_one_does(
    engine: VllmRollout, path: Path, tmp_path: Path
) -> None:
    engine.load_weights(vllm_rank.changed(path).items(), version=6)
    wanted = engine.probe(vllm_rank.PROMPTS)

    ranks = vllm_rank.on_ranks(path, 2, tensor=2, folder=tmp_path, int8=True)

    for rank in ranks:
        for found, logprobs in zip(rank["probed"], wanted, strict=True):
            assert found == pytest.approx(logprobs, abs=1e-4)


def test_experts_are_refused_by_the_name_of_their_layer() -> None:
    from vllm.model_executor.layers.fused_moe import (
        RoutedExperts,  # seconds, of the one worker that needs it
    )

    from rljob_runtime.rollout.vllm_int8 import Int8

    layer, name = RoutedExperts.__new__(RoutedExperts), "model.layers.0.mlp.experts"

    with pytest.raises(ValueError, match=f"{name} has experts, which are not rounded here"):
        Int8().get_quant_method(layer, name)
