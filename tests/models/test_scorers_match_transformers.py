"""Critics and reward models: scalar heads on the decoder against transformers' classifiers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from reference_models import make_reference

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import scorer_config
from rljob_runtime.models.loading import load_scorer
from rljob_runtime.models.weights import read_weights, save_hf
from rljob_runtime.samples.sample import SampleBatch

MODELS = ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe", "DeepseekV2", "DeepseekV3")
FAMILY_OF = {
    "Llama": "llama-biased",
    "Mistral": "mistral",
    "Qwen2": "qwen2-tied",
    "Qwen3": "qwen3-tied",
    "Qwen3Moe": "qwen3-moe",
    "DeepseekV2": "deepseek-v2",
    "DeepseekV3": "deepseek-v3",
}
CLASSIFIERS = [
    f"{model}{head}"
    for model in MODELS
    for head in ("ForSequenceClassification", "ForTokenClassification")
    if hasattr(transformers, f"{model}{head}")
]


def make_classifier(name: str, *, labels: int = 1) -> Any:
    config = make_reference(FAMILY_OF[name.partition("For")[0]]).config
    config.num_labels = labels
    torch.manual_seed(1)
    model = getattr(transformers, name)(config).eval()
    model.config._experts_implementation = "eager"
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in key else 0.0, 0.2)
    return model


def reference_values(model: Any, batch: SampleBatch) -> torch.Tensor:
    """The score of each position that a response token follows."""
    values = []
    for sample, response in enumerate(batch.responses):
        prompt = batch.prompts[int(batch.group_of_B[sample])]
        hidden = model.model(torch.cat([prompt, response])[None]).last_hidden_state[0]
        values.append(model.score(hidden)[len(prompt) - 1 :, 0][: len(response)])
    return torch.cat(values)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_values_and_gradients_equal_transformers(
    name: str, ragged_batch: SampleBatch, tmp_path: Path
) -> None:
    reference = make_classifier(name)
    reference.save_pretrained(tmp_path)
    weights = torch.linspace(-1, 1, ragged_batch.num_tokens)

    scorer = load_scorer(tmp_path, dtype=torch.float32)
    ours = scorer.logprobs(ragged_batch, temperature=1.0).logprobs_T
    (ours * weights).sum().backward()

    expected = reference_values(reference, ragged_batch)
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    gradients = {n: p.grad for n, p in reference.named_parameters()}
    for key in ("score.weight", "model.norm.weight", "model.embed_tokens.weight"):
        found = dict(scorer.named_parameters())[key].grad
        scale = gradients[key].abs().max().clamp(min=1.0)
        torch.testing.assert_close(found / scale, gradients[key] / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifiers_directory_comes_back_bit_by_bit(name: str, tmp_path: Path) -> None:
    make_classifier(name).save_pretrained(tmp_path / "there")
    scorer = load_scorer(tmp_path / "there", dtype=torch.float32)

    save_hf(scorer.named_hf_parameters(), source=tmp_path / "there", folder=tmp_path / "back")

    there, back = read_weights(tmp_path / "there"), read_weights(tmp_path / "back")
    assert there.keys() == back.keys()
    assert all(torch.equal(there[key], back[key]) for key in there)
    again = getattr(transformers, name).from_pretrained(tmp_path / "back")
    assert torch.equal(again.score.weight, there["score.weight"])


@pytest.mark.parametrize("family", ["qwen3-tied", "llama"])
def test_a_language_model_becomes_a_critic_whose_values_are_zero(
    family: str, ragged_batch: SampleBatch, tmp_path: Path
) -> None:
    make_reference(family).save_pretrained(tmp_path / "policy")

    critic = load_scorer(tmp_path / "policy", dtype=torch.float32)
    config = scorer_config(read_config(tmp_path / "policy"), critic.architecture)
    save_hf(critic.named_hf_parameters(), config=config, folder=tmp_path / "critic")

    assert not critic.logprobs(ragged_batch, temperature=1.0).logprobs_T.any()
    assert critic.score.weight.requires_grad
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "critic")
    assert type(model).__name__.endswith("ForSequenceClassification")
    assert model.score.weight.shape == (1, 32) and not model.score.weight.any()


def test_a_classifier_of_two_labels_is_refused_by_name(tmp_path: Path) -> None:
    make_classifier("Qwen3ForSequenceClassification", labels=2).save_pretrained(tmp_path)

    with pytest.raises(
        ConfigError, match=r"Qwen3ForSequenceClassification has 2 labels .* num_labels=1"
    ):
        load_scorer(tmp_path, dtype=torch.float32)


def test_a_family_that_is_not_ours_is_refused_as_a_critic(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))

    with pytest.raises(ConfigError, match=r"cannot be a critic or a reward model.*GPT2LMHeadModel"):
        load_scorer(tmp_path, dtype=torch.float32)
