"""Drawing tokens: uniforms against published numbers, distributions against probabilities."""

import math

import pytest
import torch
from rollouts import sampling

from rljob_runtime.rollout.sampling import draw, uniforms

CHI_SQUARE_LIMIT = 37.7  # 15 degrees of freedom, p = 0.001
DRAWS = 20_000


def test_uniforms_are_splitmix64() -> None:
    # First outputs of SplitMix64 seeded with 1234567 (Rosetta Code, "Pseudo-random numbers").
    outputs = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]

    found = uniforms(torch.full((5,), 1234567), torch.arange(5))

    assert found.tolist() == [(output >> 11) * 2.0**-53 for output in outputs]


def test_uniforms_lie_below_one_for_any_seed() -> None:
    seeds = torch.tensor([0, 1, 2**63 - 1, 12345678901234567])

    found = torch.stack([uniforms(seeds, torch.full((4,), t)) for t in range(2000)])

    assert found.dtype == torch.float64
    assert found.min() >= 0 and found.max() < 1
    assert (found.mean(0) - 0.5).abs().max() < 0.03
    assert torch.corrcoef(found.T).fill_diagonal_(0).abs().max() < 0.1


def drawn(logits: torch.Tensor, by_position: bool, **how: object) -> torch.Tensor:
    """Draws of one distribution with many seeds, or at many positions of one seed."""
    count = torch.arange(DRAWS)
    zero = torch.zeros(DRAWS, dtype=torch.int64)
    numbers = uniforms(zero + 5, count) if by_position else uniforms(count, zero)
    return draw(logits.expand(DRAWS, -1), numbers, sampling(**how))[0]


def chi_square(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities * DRAWS
    found = torch.bincount(tokens, minlength=len(probabilities))
    return float(((found - expected).square() / expected).sum())


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_distribution(by_position: bool, temperature: float) -> None:
    logits = torch.randn(16, generator=torch.Generator().manual_seed(0))

    tokens = drawn(logits, by_position, temperature=temperature)

    assert chi_square(tokens, (logits / temperature).softmax(-1)) < CHI_SQUARE_LIMIT


def test_top_k_restricts_the_support_and_keeps_the_ratios() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, -1.0, 1.5])

    tokens = drawn(logits, False, top_k=3)

    kept = torch.tensor([1, 2, 4])
    assert set(tokens.tolist()) == set(kept.tolist())
    shares = torch.bincount(tokens)[kept] / DRAWS
    torch.testing.assert_close(shares, logits[kept].softmax(-1), atol=0.015, rtol=0)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.05, {1}), (0.5, {1}), (0.51, {1, 3}), (0.8, {1, 3}), (0.82, {1, 3, 0})]
)
def test_top_p_keeps_the_fewest_tokens_that_hold_its_share(top_p: float, kept: set[int]) -> None:
    logits = torch.tensor([0.125, 0.5, 0.0625, 0.3125]).log()

    assert set(drawn(logits, False, top_p=top_p).tolist()) == kept


def test_top_p_is_taken_of_what_top_k_leaves() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()

    tokens = drawn(logits, False, top_k=2, top_p=0.5)

    assert set(tokens.tolist()) == {0}


def test_greedy_takes_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])

    tokens, logprobs = draw(logits, torch.tensor([0.99, 0.99]), sampling(greedy=True))

    assert tokens.tolist() == [1, 0]
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).max(-1).values)


def test_logprobs_are_before_the_cut_and_after_the_temperature() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])

    tokens, logprobs = draw(
        logits, torch.tensor([0.3]), sampling(temperature=2.0, top_k=1, top_p=0.5)
    )

    assert tokens.tolist() == [1]
    assert math.isclose(float(logprobs), float((logits / 2).log_softmax(-1)[0, 1]), abs_tol=1e-6)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2.0**-53])
def test_impossible_tokens_are_never_drawn(number: float) -> None:
    logits = torch.full((1, 50_000), float("-inf"))
    logits[0, [7, 40_000]] = 0.0

    tokens, _ = draw(logits, torch.tensor([number], dtype=torch.float64), sampling())

    assert int(tokens) in (7, 40_000)


@pytest.mark.parametrize("vocabulary", [8191, 8192, 8193, 50_000])
def test_a_large_vocabularys_tokens_are_where_the_running_sum_passes_the_share(
    vocabulary: int,
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(40, vocabulary, generator=generator)
    logits[:, 100:400] = float("-inf")
    numbers = torch.rand(40, generator=generator, dtype=torch.float64)
    numbers[:2] = torch.tensor([0.0, 1 - 2.0**-53])

    tokens, logprobs = draw(logits, numbers, sampling())

    expected = logits.double().log_softmax(-1)
    row = torch.arange(40)
    sums, shares = expected.exp().cumsum(-1)[row, tokens], expected.exp()[row, tokens]
    assert (sums >= numbers - 1e-6).all()
    assert (sums - shares <= numbers + 1e-6).all()
    assert (shares > 0).all()
    torch.testing.assert_close(logprobs.double(), expected[row, tokens], atol=2e-6, rtol=0)
