"""The decoder's log-probs, entropies and gradients against transformers, sample by sample."""

from typing import Any

import pytest
import torch
from reference_models import config_of, make_reference, weights_of

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import UnsupportedArchitecture
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.packing import pack
from rljob_runtime.samples.sample import SampleBatch

TEMPERATURE = 0.7


def decoder_like(reference: Any) -> Decoder:
    decoder = Decoder(read_architecture(config_of(reference)))
    weights = weights_of(reference)
    decoder.load_state_dict({k: v.detach().clone() for k, v in weights.items()})
    return decoder


def reference_logprobs(reference: Any, batch: SampleBatch) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs, entropies = [], []
    for sample, response in enumerate(batch.responses):
        prompt = batch.prompts[int(batch.group_of_B[sample])]
        logits = reference(torch.cat([prompt, response])[None]).logits[0] / TEMPERATURE
        predicted = logits[len(prompt) - 1 : len(prompt) - 1 + len(response)].log_softmax(-1)
        logprobs.append(predicted.gather(1, response[:, None])[:, 0])
        entropies.append(-(predicted.exp() * predicted).sum(-1).detach())
    return torch.cat(logprobs), torch.cat(entropies)


def test_logprobs_and_entropy_equal_transformers(family: str, ragged_batch: SampleBatch) -> None:
    reference = make_reference(family)
    decoder = decoder_like(reference)

    ours = decoder.logprobs(ragged_batch, temperature=TEMPERATURE, with_entropy=True)

    logprobs, entropies = reference_logprobs(reference, ragged_batch)
    torch.testing.assert_close(ours.logprobs_T, logprobs, atol=1e-5, rtol=0)
    assert ours.entropy_T is not None and not ours.entropy_T.requires_grad
    torch.testing.assert_close(ours.entropy_T, entropies, atol=1e-5, rtol=0)


def test_gradients_equal_transformers(family: str, ragged_batch: SampleBatch) -> None:
    reference = make_reference(family)
    decoder = decoder_like(reference)
    weights = torch.linspace(-1, 1, ragged_batch.num_tokens)

    (decoder.logprobs(ragged_batch, temperature=TEMPERATURE).logprobs_T * weights).sum().backward()
    (reference_logprobs(reference, ragged_batch)[0] * weights).sum().backward()

    gradients = {name: p.grad for name, p in decoder.named_parameters()}
    expected = {name: p.grad for name, p in reference.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        scale = expected[name].abs().max().clamp(min=1.0)
        torch.testing.assert_close(
            gradient / scale, expected[name] / scale, atol=1e-4, rtol=0, msg=name
        )


def test_a_prompts_only_sample_is_one_sequence_with_it(ragged_batch: SampleBatch) -> None:
    reference = make_reference("qwen3")
    batch = ragged_batch.select([2, 1, 4, 6])  # two of prompt 2, one of prompt 0 and of prompt 1

    packing = pack(batch, device=torch.device("cpu"))
    ours = decoder_like(reference).logprobs(batch, temperature=TEMPERATURE).logprobs_T

    alone = [
        group for group in range(len(batch.prompts)) if packing.segments.prompt_of.count(group) == 1
    ]
    assert len(alone) == 2
    for sequence in packing.sequences.lengths[: len(batch.prompts)]:
        assert sequence[0] == sequence[1]
    assert len(packing.sequences.lengths) == len(batch.prompts) + 2
    torch.testing.assert_close(ours, reference_logprobs(reference, batch)[0], atol=1e-5, rtol=0)


def test_gradients_do_not_depend_on_how_the_batch_is_split(ragged_batch: SampleBatch) -> None:
    whole, split = (decoder_like(make_reference("qwen3")).double() for _ in range(2))

    whole.logprobs(ragged_batch, temperature=1.0).logprobs_T.sum().backward()
    for part in ([0, 3], [1, 2], [4], [5, 6]):
        split.logprobs(ragged_batch.select(part), temperature=1.0).logprobs_T.sum().backward()

    for (name, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        scale = a.grad.abs().max().clamp(min=1.0)
        torch.testing.assert_close(a.grad / scale, b.grad / scale, atol=1e-6, rtol=0, msg=name)


def test_a_batch_of_one_token_responses_needs_no_response_attention() -> None:
    reference = make_reference("llama")
    decoder = decoder_like(reference)
    batch = SampleBatch(
        prompts=[torch.tensor([3, 4, 5])],
        group_of_B=torch.tensor([0, 0]),
        responses=[torch.tensor([7]), torch.tensor([8])],
    )

    ours = decoder.logprobs(batch, temperature=TEMPERATURE).logprobs_T

    torch.testing.assert_close(ours, reference_logprobs(reference, batch)[0], atol=1e-5, rtol=0)


def test_prompts_without_any_sample_leave_the_others_alone(ragged_batch: SampleBatch) -> None:
    decoder = decoder_like(make_reference("qwen2"))
    more = SampleBatch(
        prompts=[*ragged_batch.prompts, torch.tensor([1, 2, 3])],
        group_of_B=ragged_batch.group_of_B,
        responses=ragged_batch.responses,
    )

    with torch.no_grad():
        plain = decoder.logprobs(ragged_batch, temperature=1.0).logprobs_T
        padded = decoder.logprobs(more, temperature=1.0).logprobs_T

    torch.testing.assert_close(plain, padded, atol=1e-6, rtol=0)


def test_initialize_is_a_function_of_the_seed() -> None:
    first, same, other = (decoder_like(make_reference("qwen3")) for _ in range(3))

    first.initialize(5)
    same.initialize(5)
    other.initialize(6)

    matrices = [
        dict(d.named_parameters())["model.embed_tokens.weight"] for d in (first, same, other)
    ]
    assert torch.equal(matrices[0], matrices[1])
    assert not torch.equal(matrices[0], matrices[2])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True, "sliding_window": 8}, "sliding_window=8"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, "rope_type=longrope"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    config = config_of(make_reference("qwen3"))

    with pytest.raises(UnsupportedArchitecture, match=word):
        read_architecture({**config, **change})


def test_old_and_new_rope_spellings_are_the_same() -> None:
    new = config_of(make_reference("llama-rope-llama3"))
    scaling = dict(new["rope_parameters"])
    old = {k: v for k, v in new.items() if k != "rope_parameters"}
    old |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}

    assert read_architecture(old) == read_architecture(new)


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("mistral", {"sliding_window": 16}, "sliding_window=16 is not computed here"),
        ("qwen3-moe", {"mlp_only_layers": [0, 1, 2]}, "mlp_only_layers leaves no layer experts"),
        ("deepseek-v2", {"norm_topk_prob": True}, "norm_topk_prob=True is not False"),
        ("deepseek-v2", {"topk_method": "noaux_tc"}, "topk_method=noaux_tc is not greedy or group"),
        ("deepseek-v2", {"scoring_func": "sigmoid"}, "scoring_func=sigmoid is not softmax"),
        ("deepseek-v2", {"num_key_value_heads": 2}, "num_key_value_heads=2 is not 4"),
        ("deepseek-v3", {"scoring_func": "softmax"}, "scoring_func=softmax is not sigmoid"),
        ("deepseek-v3", {"topk_method": "greedy"}, "topk_method=greedy is not noaux_tc"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq=2 is not 1"),
        ("deepseek-v3", {"first_k_dense_replace": 3}, "first_k_dense_replace=3 leaves no layer"),
        ("deepseek-v3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not 1.0"),
    ],
)
def test_a_familys_unknown_switches_are_refused_by_name(
    family: str, change: dict[str, Any], words: str
) -> None:
    config = config_of(make_reference(family))

    with pytest.raises(UnsupportedArchitecture, match=words):
        read_architecture({**config, **change})


def test_experts_that_cannot_be_chosen_are_named() -> None:
    config = config_of(make_reference("deepseek-v3"))

    with pytest.raises(
        ConfigError, match="num_experts_per_tok=5 is more than the experts of the 2"
    ):
        read_architecture({**config, "num_experts_per_tok": 5})


def test_a_sequence_beyond_dynamic_rotations_positions_is_refused() -> None:
    decoder = decoder_like(make_reference("llama-rope-dynamic"))
    fits, longer = (
        SampleBatch(
            prompts=[torch.ones(200, dtype=torch.int64)],
            group_of_B=torch.tensor([0]),
            responses=[torch.ones(length, dtype=torch.int64)],
        )
        for length in (57, 58)  # the last token of a response is not fed
    )

    assert decoder.logprobs(fits, temperature=1.0).logprobs_T.isfinite().all()
    with pytest.raises(ConfigError, match="257 tokens is longer than max_position_embeddings=256"):
        decoder.logprobs(longer, temperature=1.0)
