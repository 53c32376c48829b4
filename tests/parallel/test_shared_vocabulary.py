"""Embeddings and log-probs over a vocabulary that ranks share: one rank's, without all logits anywhere."""

import pytest
import torch
import torch.nn.functional as F
from forked_ranks import on_ranks
from sent_bytes import SentBytes
from torch import Tensor, distributed
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_runtime.devices.kernels.linear_logprobs import linear_logprobs
from rljob_runtime.parallel.vocabulary import (
    VocabularyShare,
    embed_tokens,
    token_logprobs_bytes,
)

VOCABULARY, HIDDEN, POSITIONS, TARGETS = 27, 6, 10, 16
TEMPERATURE = 0.7
LOGITS_AT_ONCE = 24
"""Three positions of 7 ids and four of 6: as many as three of four ranks hold, and the fourth."""


def drawn(text_ids: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weight, targets and the positions that predict them; some positions none."""
    random = torch.Generator().manual_seed(2)
    return (
        torch.randn(POSITIONS, HIDDEN, generator=random) * 3,
        torch.randn(VOCABULARY, HIDDEN, generator=random),
        torch.randint(0, text_ids, (TARGETS,), generator=random),
        torch.randint(0, POSITIONS - 2, (TARGETS,), generator=random),
    )


def weights_of(targets: int) -> Tensor:
    return torch.linspace(-1, 1, targets)


def one_rank(text_ids: int) -> list[Tensor]:
    """Log-probs, entropies, gradients of hidden states and weight through both, of all logits in double
    precision."""
    hidden, weight, target, row_of = drawn(text_ids)
    hidden, weight = hidden.double().requires_grad_(), weight.double().requires_grad_()
    all_logprobs = (hidden @ weight[:text_ids].T / TEMPERATURE).log_softmax(-1)[row_of]
    logprobs = all_logprobs[torch.arange(TARGETS), target]
    entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
    (logprobs * weights_of(TARGETS) + entropy * weights_of(TARGETS).flip(0)).sum().backward()
    return [found.detach().float() for found in (logprobs, entropy, hidden.grad, weight.grad)]


def on_rank(rank: int, ranks: int, text_ids: int = VOCABULARY) -> tuple[list[Tensor], float]:
    group = distributed.group.WORLD if ranks > 1 else None
    held = VocabularyShare.of(VOCABULARY, group)
    hidden, weight, target, row_of = drawn(text_ids)
    hidden.requires_grad_()
    weight = weight[held.ids.start : held.ids.stop].clone().requires_grad_()
    with SentBytes() as sent:
        logprobs, entropy = linear_logprobs(
            hidden,
            weight,
            target,
            row_of,
            temperature=TEMPERATURE,
            with_entropy=True,
            ids=held,
            rows=len(held.below(text_ids)),
            logits_at_once=LOGITS_AT_ONCE,
        )
        (logprobs * weights_of(TARGETS) + entropy * weights_of(TARGETS).flip(0)).sum().backward()
    distributed.all_reduce(hidden.grad)
    return [logprobs.detach(), entropy.detach(), hidden.grad, weight.grad], sent.total


@pytest.mark.parametrize("text_ids", [VOCABULARY, 16])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_log_probs_entropies_and_gradients_are_one_ranks(ranks, text_ids):
    """Also where the last of four ranks has no id that is ever drawn, and the one before it few."""
    expected = one_rank(text_ids)

    results = [found for found, _ in on_ranks(ranks, lambda rank: on_rank(rank, ranks, text_ids))]

    for found in results:
        torch.testing.assert_close(found[:3], expected[:3], rtol=1e-5, atol=1e-5)
    weight_gradient = torch.cat([found[3] for found in results])
    torch.testing.assert_close(weight_gradient, expected[3], rtol=1e-5, atol=1e-5)


def test_four_numbers_a_token_are_sent_and_none_on_the_way_back():
    (_, sent), *_ = on_ranks(4, lambda rank: on_rank(rank, 4))

    assert sent == token_logprobs_bytes(POSITIONS, TARGETS, 4)


class LargestTensor(TorchDispatchMode):
    items = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        output = operator(*args, **(kwargs or {}))
        if isinstance(output, Tensor):
            self.items = max(self.items, output.numel())
        return output


def test_no_rank_holds_more_logits_than_one_chunk():
    positions, vocabulary, rows = 64, 512, 4

    def largest(rank: int) -> int:
        held = VocabularyShare.of(vocabulary, distributed.group.WORLD)
        hidden = torch.randn(positions, HIDDEN, requires_grad=True)
        weight = torch.randn(len(held.ids), HIDDEN, requires_grad=True)
        everywhere = torch.arange(positions)
        with LargestTensor() as seen:
            logprobs, _ = linear_logprobs(
                hidden,
                weight,
                everywhere,
                everywhere,
                ids=held,
                logits_at_once=rows * len(held.ids),
            )
            logprobs.sum().backward()
        return seen.items

    chunk, weights = rows * vocabulary // 2, vocabulary // 2 * HIDDEN
    assert on_ranks(2, largest) == [max(chunk, weights)] * 2


def test_extreme_logits_keep_their_log_probs():
    def logprobs(rank: int) -> Tensor:
        held = VocabularyShare.of(4, distributed.group.WORLD)
        weight = torch.tensor([[1.0], [0.0], [-1.0], [1.0]])[held.ids.start : held.ids.stop]
        rows = torch.arange(2)
        hidden, target = torch.tensor([[5000.0], [-5000.0]]), torch.tensor([3, 1])
        return linear_logprobs(hidden, weight, target, rows, ids=held)[0]

    for found in on_ranks(2, logprobs):
        torch.testing.assert_close(found, torch.tensor([-0.6931472, -5000.0]))


def test_embeddings_and_their_gradient_are_one_ranks():
    tokens = torch.tensor([0, 26, 9, 9, 13, 14, 1, 2])
    random = torch.Generator().manual_seed(3)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=random).requires_grad_()
    up = torch.randn(len(tokens), HIDDEN, generator=random)
    expected = F.embedding(tokens, weight)
    expected.backward(up)

    def embed(rank: int) -> tuple[Tensor, Tensor]:
        held = VocabularyShare.of(VOCABULARY, distributed.group.WORLD)
        rows = weight.detach()[held.ids.start : held.ids.stop].clone().requires_grad_()
        embedded = embed_tokens(tokens, rows, held)
        embedded.backward(up.chunk(4)[rank])
        return embedded.detach(), rows.grad

    results = on_ranks(4, embed)

    assert torch.cat([embedded for embedded, _ in results]).equal(expected)
    torch.testing.assert_close(torch.cat([gradient for _, gradient in results]), weight.grad)
