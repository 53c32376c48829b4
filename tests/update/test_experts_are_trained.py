"""Training of models with experts: the balance loss in the step, metrics over ranks, what stays."""

from typing import Any

import pytest
import torch
from reference_models import config_of, make_reference, weights_of
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_torch import TorchUpdateEngine

COEFFICIENT = 0.5


@pytest.fixture
def bench(both: Any) -> Any:
    """Builders of batches, engines and ranks; the models are made here."""
    return both[0]


def make_decoder(family: str = "qwen3-moe", *, balanced: bool = False) -> Decoder:
    reference = make_reference(family)
    config = config_of(reference)
    if balanced:
        config |= {"output_router_logits": True, "router_aux_loss_coef": COEFFICIENT}
    decoder = Decoder(read_architecture(config))
    decoder.load_state_dict({k: v.detach().clone() for k, v in weights_of(reference).items()})
    return decoder


def mean_logprob(logprobs_T: Tensor, batch: SampleBatch, totals: Totals) -> LossOutput:
    loss = -logprobs_T.sum() / totals.num_tokens
    return LossOutput(loss=loss, mean_over="tokens", token_sums={}, maxima={})


def flat_gradient(
    engine: TorchUpdateEngine, decoder: Decoder, batches: list[SampleBatch]
) -> Tensor:
    """The step's gradient before clipping, from the buffer that collects sums."""
    begun = engine.begin(mean_logprob)
    for batch in batches:
        begun.add(batch)
    sums = torch.cat([p.grad.flatten() for p in decoder.parameters() if p.grad is not None])
    begun.discard()
    return sums / begun.counts.num_tokens


def test_the_balance_loss_is_added_weighted_by_the_tokens_of_its_micro_batch(bench: Any) -> None:
    batches = [bench.make_batch(2, 3, seed=1), bench.make_batch(1, 4, seed=2)]
    decoder = make_decoder(balanced=True)
    plain = make_decoder()
    sizes = [batch.num_tokens for batch in batches]

    found = flat_gradient(bench.make_engine(decoder), decoder, batches)
    without = flat_gradient(bench.make_engine(plain), plain, batches)

    penalty = torch.zeros(())
    for batch, size in zip(batches, sizes, strict=True):
        load = plain.logprobs(batch, temperature=1.0).router_load
        assert load is not None
        penalty = penalty + COEFFICIENT * size / sum(sizes) * load.balance_loss()
    parameters = list(plain.parameters())
    parts = torch.autograd.grad(penalty, parameters, allow_unused=True)
    expected = torch.cat(
        [
            torch.zeros(p.numel()) if g is None else g.flatten()
            for p, g in zip(parameters, parts, strict=True)
        ]
    )
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found - without, expected, atol=1e-5, rtol=1e-4)


def test_metrics_do_not_depend_on_how_ranks_share_the_samples(bench: Any) -> None:
    batches = [bench.make_batch(1, 4, seed=1), bench.make_batch(1, 4, seed=2)]

    def train(*shares: list[SampleBatch]) -> list[dict[str, float]]:
        decoders = [make_decoder() for _ in shares]  # here: ranks are threads, the seed is global

        def rank(index: int, group: ProcessGroup | None) -> dict[str, float]:
            engine = bench.make_engine(decoders[index], group)
            return engine.train(shares[index], mean_logprob, groups_with_signal=len(shares[index]))

        return bench.on_ranks(len(shares), rank)

    (alone,) = train(batches)
    split = train(batches[:1], batches[1:])
    idle = train(batches, [])

    assert alone["router/load_max"] > 1 and 0 <= alone["router/idle"] < 1
    assert alone["router/balance"] > 1
    for metrics in (*split, *idle):
        assert metrics == pytest.approx(alone, abs=1e-4)


def test_the_correction_bias_is_saved_and_stays_as_it_is(bench: Any) -> None:
    decoder = make_decoder("deepseek-v3")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    engine = bench.make_engine(decoder, weight_decay=0.1)
    before = {key: weight.clone() for key, weight in engine.weights()}

    engine.train([bench.make_batch(2, 3)], mean_logprob, groups_with_signal=2)

    after = dict(engine.weights())
    assert after[name].equal(before[name])
    changed = {key for key, weight in after.items() if not weight.equal(before[key])}
    assert "model.layers.1.mlp.gate.weight" in changed
    assert any(".experts." in key for key in changed)
