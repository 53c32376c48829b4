"""Routers that take the experts that were chosen elsewhere: a dense reference, and a whole decoder."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from parallel_training import grpo
from reference_models import make_reference
from torch import Tensor, nn

from rljob_runtime.algorithms.algorithm import Totals
from rljob_runtime.models.architecture import MoeArchitecture
from rljob_runtime.models.blocks.moe import MixtureOfExperts
from rljob_runtime.models.blocks.router import Routes
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.routes import unpack_routes
from rljob_runtime.samples.sample import SampleBatch

# U tokens, H hidden, E experts, K experts of a token
U, H, E, K = 9, 16, 6, 2


def make_block(scores: str) -> MixtureOfExperts:
    experts = MoeArchitecture(
        count=E, chosen=K, intermediate_size=8, layers=(0,), scale=1.5,
        scores=scores,  # type: ignore[arg-type]
        correction_bias=scores == "sigmoid",
    )  # fmt: skip
    block = MixtureOfExperts(experts, H, torch.float64, with_bias=False)
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in block.parameters():
            weight.normal_(0.0, 0.5, generator=random)
        for bias in block.buffers():
            bias.normal_(generator=random)
    return block


def densely(block: MixtureOfExperts, x_UH: Tensor, replayed_UK: Tensor, scores: str) -> Tensor:
    """Every expert of every token, of which those that were not chosen weigh nothing."""
    chosen_UE = F.one_hot(replayed_UK, E).sum(1)
    logits_UE = x_UH @ block.gate.weight.T
    score_UE = logits_UE.sigmoid() if scores == "sigmoid" else logits_UE.exp()
    weight_UE = score_UE * chosen_UE
    weight_UE = 1.5 * weight_UE / weight_UE.sum(1, keepdim=True)
    gate_UEI, up_UEI = torch.einsum("uh,eih->uei", x_UH, block.experts.gate_up_proj).chunk(2, -1)
    output_UEH = torch.einsum("uei,ehi->ueh", F.silu(gate_UEI) * up_UEI, block.experts.down_proj)
    return (weight_UE[..., None] * output_UEH).sum(1)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_output_and_gradients_are_a_dense_models_with_the_recorded_experts(scores: str) -> None:
    block, random = make_block(scores), torch.Generator().manual_seed(5)
    x_UH = torch.randn(U, H, dtype=torch.float64, generator=random).requires_grad_()
    replayed_UK = torch.rand(U, E, generator=random).topk(K).indices
    towards = torch.randn(U, H, dtype=torch.float64, generator=random)
    inputs = [x_UH, *block.parameters()]

    ours = block(x_UH, None, replayed_UK.to(torch.uint8))
    expected = densely(block, x_UH, replayed_UK, scores)

    torch.testing.assert_close(ours, expected)
    assert not torch.equal(block(x_UH, None), ours)
    found = torch.autograd.grad(ours, inputs, towards)
    for one, other in zip(found, torch.autograd.grad(expected, inputs, towards), strict=True):
        torch.testing.assert_close(one, other)
    assert found[1].abs().max() > 0  # of the router


def chosen_by(decoder: Decoder, batch: SampleBatch) -> SampleBatch:
    """The batch with the routes that its tokens have by these weights, one sample at a time."""
    rows = []
    for sample in range(batch.num_samples):
        layers: list[Tensor] = []

        def note(_: object, __: object, routes: Routes, layers: list[Tensor] = layers) -> None:
            layers.append(routes.experts_UK.to(torch.uint8))

        hooks = [gate.register_forward_hook(note) for gate in _routers(decoder)]
        group = int(batch.group_of_B[sample])
        tokens = torch.cat([batch.prompts[group], batch.responses[sample][:-1]])
        decoder.logprobs(
            SampleBatch(
                prompts=[tokens], group_of_B=torch.tensor([0]), responses=[torch.tensor([1])]
            ),
            temperature=1.0,
        )
        for hook in hooks:
            hook.remove()
        rows.append(torch.stack(layers, 1).flatten())
    return replace(batch, routes=rows)


def _routers(decoder: Decoder) -> list[nn.Module]:
    return [part.gate for part in decoder.modules() if isinstance(part, MixtureOfExperts)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_reference("qwen3-moe-some-dense").save_pretrained(tmp_path)
    return tmp_path


def gradients(decoder: Decoder, batch: SampleBatch) -> dict[str, Tensor]:
    batch.fields["rollout_logprobs"] = batch.fields["reference_logprobs"] = [
        torch.full((len(row),), -4.0) for row in batch.responses
    ]
    batch.scalars["advantage"] = torch.linspace(-1, 1, batch.num_samples)
    said = decoder.logprobs(batch, temperature=1.0)
    grpo(said.logprobs_T, batch, Totals(num_tokens=1, num_sequences=1)).loss.backward()
    found = {n: p.grad.clone() for n, p in decoder.named_parameters() if p.grad is not None}
    decoder.zero_grad()
    return found


@pytest.mark.parametrize("recompute", [False, True])
def test_a_models_own_routes_give_its_own_bits(
    recompute: bool, model: Path, ragged_batch: SampleBatch
) -> None:
    decoder = load_decoder(model, dtype=torch.float32)
    replayed = chosen_by(decoder, ragged_batch)
    alone = gradients(decoder, ragged_batch)
    if recompute:
        decoder.recompute_layers()

    found = gradients(decoder, replayed)

    assert found.keys() == alone.keys()
    assert all(gradient.equal(alone[name]) for name, gradient in found.items())


def test_routers_that_have_moved_take_the_recorded_experts(
    model: Path, ragged_batch: SampleBatch
) -> None:
    decoder = load_decoder(model, dtype=torch.float32)
    replayed = chosen_by(decoder, ragged_batch)
    experts = decoder.architecture.experts
    assert experts is not None
    with torch.no_grad():
        for router in _routers(decoder):
            router.weight.neg_()  # type: ignore[operator]

    load = decoder.logprobs(replayed, temperature=1.0).router_load
    own = decoder.logprobs(ragged_batch, temperature=1.0).router_load

    assert load is not None and own is not None
    routes = [unpack_routes(row, experts).long() for row in replayed.routes]
    group_of_B = ragged_batch.group_of_B.tolist()
    lengths = [len(prompt) for prompt in ragged_batch.prompts]
    packed = [routes[group_of_B.index(group)][:length] for group, length in enumerate(lengths)]
    packed += [row[lengths[group] :] for row, group in zip(routes, group_of_B, strict=True)]
    recorded_ME = F.one_hot(torch.cat(packed), experts.count).sum((0, 2))
    assert load.tokens_ME().equal(recorded_ME)
    assert not own.tokens_ME().equal(recorded_ME)
