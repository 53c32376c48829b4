"""Any Hugging Face model as a policy: padded rows give what each sample alone gives."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rljob_runtime.errors import ConfigError, WeightsError
from rljob_runtime.models.transformers_model import TransformersModel
from rljob_runtime.samples.sample import SampleBatch

MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=40, n_positions=64, n_embd=16, n_layer=2, n_head=2,
            bos_token_id=0, eos_token_id=1,
        )
    ),
    "opt": lambda: OPTForCausalLM(
        OPTConfig(
            vocab_size=40, hidden_size=16, ffn_dim=32, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=64, word_embed_proj_dim=16,
        )
    ),
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8, tie_word_embeddings=False,
        )
    ),
}  # fmt: skip


@pytest.fixture(params=list(MODELS))
def model(request):
    """A small random model, dropout included where its kind has it."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = MODELS[request.param]()
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    return TransformersModel(model.train())


def ragged_batch():
    random = torch.Generator().manual_seed(0)

    def tokens(length):
        return torch.randint(0, 40, (length,), generator=random)

    return SampleBatch(
        prompts=[tokens(5), tokens(1), tokens(9)],
        group_of_B=torch.tensor([2, 0, 1, 0, 1]),
        responses=[tokens(4), tokens(0), tokens(7), tokens(1), tokens(2)],
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_entropy_are_those_of_each_sample_alone(model, temperature):
    batch = ragged_batch()

    got = model.logprobs(batch, temperature=temperature, with_entropy=True)

    logprobs, entropies = [], []
    for group, response in zip(batch.group_of_B.tolist(), batch.responses, strict=True):
        row = torch.cat([batch.prompts[group], response])
        logits = model.model(row[None]).logits[0] / temperature
        for place in range(len(batch.prompts[group]), len(row)):
            drawn_from = torch.distributions.Categorical(logits=logits[place - 1])
            logprobs.append(drawn_from.log_prob(row[place]))
            entropies.append(drawn_from.entropy())
    torch.testing.assert_close(got.logprobs_T, torch.stack(logprobs), atol=1e-5, rtol=0)
    torch.testing.assert_close(got.entropy_T, torch.stack(entropies).detach(), atol=1e-5, rtol=0)
    assert got.logprobs_T.requires_grad and not got.entropy_T.requires_grad


def test_every_parameter_gets_a_gradient_and_tied_weights_are_named_once(model):
    model.logprobs(ragged_batch(), temperature=1.0).logprobs_T.sum().backward()

    named = dict(model.named_hf_parameters())

    assert all(parameter.grad is not None for parameter in named.values())
    assert len({parameter.data_ptr() for parameter in named.values()}) == len(named)
    assert set(named) <= set(model.model.state_dict())


def test_layers_that_are_computed_again_give_the_same_bits_and_keep_less(model):
    def backward():
        kept = []
        with saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
            found = model.logprobs(ragged_batch(), temperature=1.0)
        found.logprobs_T.sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        return sum(kept), found.logprobs_T.detach(), gradients

    kept, logprobs_T, gradients = backward()
    model.recompute_layers()
    fewer, again_T, recomputed = backward()

    assert fewer < kept / 2 and again_T.equal(logprobs_T)
    assert all(map(torch.equal, recomputed, gradients))


def test_a_model_without_layers_that_are_marked_cannot_compute_them_again():
    model = TransformersModel(MODELS["gpt2"]())
    model.model.transformer.h = torch.nn.ModuleList()

    with pytest.raises(ConfigError, match="GPT2LMHeadModel"):
        model.recompute_layers()


def test_saved_and_loaded_it_is_the_same_policy(model, tmp_path):
    batch = ragged_batch()
    model.model.save_pretrained(tmp_path)

    loaded = TransformersModel.from_path(tmp_path, dtype=torch.float32)

    expected_T = model.logprobs(batch, temperature=1.0).logprobs_T
    assert loaded.logprobs(batch, temperature=1.0).logprobs_T.equal(expected_T)


def test_a_missing_tensor_is_named(tmp_path):
    MODELS["qwen3"]().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(WeightsError, match=r"missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        TransformersModel.from_path(tmp_path, dtype=torch.float32)
