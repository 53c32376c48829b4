"""Where routers send tokens, and the load-balancing loss: against transformers' Qwen3-MoE."""

from typing import Any

import pytest
import torch
from reference_models import config_of, make_reference, weights_of

from rljob_runtime.models.architecture import MoeArchitecture
from rljob_runtime.models.blocks.router import Routes
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import hf_config, read_architecture
from rljob_runtime.samples.sample import SampleBatch

FAMILIES = ["qwen3-moe", "qwen3-moe-some-dense"]
TOKENS = torch.arange(5, 45) % 71


def load_and_reference(family: str) -> tuple[Decoder, RouterLoad, Any]:
    """One sample's router load, and transformers' output for the tokens that were fed."""
    reference = make_reference(family)
    decoder = Decoder(read_architecture(config_of(reference)))
    decoder.load_state_dict({k: v.detach().clone() for k, v in weights_of(reference).items()})
    batch = SampleBatch(
        prompts=[TOKENS[:15]], group_of_B=torch.tensor([0]), responses=[TOKENS[15:]]
    )
    load = decoder.logprobs(batch, temperature=1.0).router_load
    assert load is not None
    return decoder, load, reference(TOKENS[None, :-1], output_router_logits=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_balance_loss_equals_transformers(family: str) -> None:
    _, load, output = load_and_reference(family)

    torch.testing.assert_close(load.balance_loss(), output.aux_loss, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_its_gradient_equals_transformers(family: str) -> None:
    reference = make_reference(family)
    decoder, load, _ = load_and_reference(family)

    load.balance_loss().backward()
    reference(TOKENS[None, :-1], output_router_logits=True).aux_loss.backward()

    expected = {name: p.grad for name, p in reference.named_parameters()}
    reached = {name for name, gradient in expected.items() if gradient is not None}
    assert "model.layers.0.mlp.gate.weight" in reached
    for name, parameter in decoder.named_parameters():
        assert (parameter.grad is None) == (name not in reached), name
        if parameter.grad is not None:
            scale = expected[name].abs().max().clamp(min=1.0)
            torch.testing.assert_close(
                parameter.grad / scale, expected[name] / scale, atol=1e-4, rtol=0, msg=name
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_each_expert_are_counted_layer_by_layer(family: str) -> None:
    _, load, output = load_and_reference(family)

    chosen = [logits.topk(3, dim=-1).indices for logits in output.router_logits]
    expected = torch.stack([torch.bincount(layer.flatten(), minlength=8) for layer in chosen])
    assert load.tokens_ME().equal(expected)


@pytest.mark.parametrize(
    ("experts", "probabilities", "expected"),
    [
        ([[0, 1], [2, 3]], [0.25, 0.25, 0.25, 0.25], 2.0),  # all as busy: experts a token
        ([[0, 1], [0, 1]], [0.5, 0.5, 0.0, 0.0], 4.0),  # 4 experts x (1 x 0.5 + 1 x 0.5)
        ([[0, 1], [0, 2]], [0.7, 0.2, 0.1, 0.0], 3.4),  # 4 x (1 x 0.7 + 0.5 x 0.2 + 0.5 x 0.1)
    ],
)
def test_favourites_cost_more_than_even_routing(
    experts: list[list[int]], probabilities: list[float], expected: float
) -> None:
    load = RouterLoad(MoeArchitecture(count=4, chosen=2, intermediate_size=1, layers=(0,)))

    load.add(
        Routes(
            experts_UK=torch.tensor(experts),
            weights_UK=torch.ones(2, 2),
            probabilities_UE=torch.tensor([probabilities] * 2),
        )
    )

    assert float(load.balance_loss()) == pytest.approx(expected)


@pytest.mark.parametrize(("asked", "coefficient"), [(True, 0.02), (False, 0.0)])
def test_the_loss_counts_where_the_config_asks_for_it(asked: bool, coefficient: float) -> None:
    config = config_of(make_reference("qwen3-moe"))
    config |= {"output_router_logits": asked, "router_aux_loss_coef": 0.02}

    architecture = read_architecture(config)

    assert architecture.experts is not None
    assert architecture.experts.balance_coefficient == coefficient
    assert read_architecture(hf_config(architecture)) == architecture


def test_a_model_without_experts_has_no_load(ragged_batch: SampleBatch) -> None:
    decoder = Decoder(read_architecture(config_of(make_reference("llama"))))
    decoder.initialize(0)

    assert decoder.logprobs(ragged_batch, temperature=1.0).router_load is None
