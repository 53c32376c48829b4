"""Tokens that tools put into a response are read by the model and by nothing else."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rljob_api.spec.algorithms import PARAMS
from rljob_runtime.algorithms import algorithm_of
from rljob_runtime.algorithms.algorithm import Totals
from rljob_runtime.models.padded import pad_batch
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.worker.micro_batches import count_tokens
from rljob_runtime.worker.shared_reading import pack, unpack

VOCABULARY = 48


def with_answers(batch: SampleBatch, *, seed: int = 5) -> SampleBatch:
    """The batch with tools' tokens before some of each response's tokens, never the first one."""
    random = torch.Generator().manual_seed(seed)
    whole, drawn = [], []
    for response in batch.responses:
        text: list[int] = []
        mask: list[bool] = []
        for place, token in enumerate(response.tolist()):
            if place and torch.rand((), generator=random) < 0.5:
                put = torch.randint(0, VOCABULARY, (3,), generator=random).tolist()
                text, mask = text + put, mask + [False] * len(put)
            text, mask = [*text, token], [*mask, True]
        whole.append(torch.tensor(text, dtype=torch.int64))
        drawn.append(torch.tensor(mask, dtype=torch.bool))
    return replace(batch, full_responses=whole, drawn=drawn)


def test_logprobs_and_entropies_are_those_of_drawn_tokens_behind_everything(bench: Any) -> None:
    model, batch = bench.make_model(), with_answers(bench.make_batch(3, 4))

    found = model.logprobs(batch, temperature=0.7, with_entropy=True)

    everything = replace(
        batch, responses=batch.full_responses, full_responses=[], drawn=[], fields={}
    )
    expected = model.logprobs(everything, temperature=0.7, with_entropy=True)
    kept_T = torch.cat(batch.drawn)
    assert int((~kept_T).sum()) > 20
    torch.testing.assert_close(found.logprobs_T, expected.logprobs_T[kept_T])
    torch.testing.assert_close(found.entropy_T, expected.entropy_T[kept_T])


def test_the_gradient_is_that_of_a_loss_with_weights_0_on_tools_tokens(bench: Any) -> None:
    model, batch = bench.make_model(), with_answers(bench.make_batch(3, 4))
    weights_T = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(1))

    (model.logprobs(batch, temperature=1.0).logprobs_T * weights_T).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    model.zero_grad()
    everything = replace(
        batch, responses=batch.full_responses, full_responses=[], drawn=[], fields={}
    )
    all_T = torch.zeros(everything.num_tokens)
    all_T[torch.cat(batch.drawn)] = weights_T
    (model.logprobs(everything, temperature=1.0).logprobs_T * all_T).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-4)


def test_answers_at_the_very_end_of_what_is_read_change_nothing(bench: Any) -> None:
    model, batch = bench.make_model(), bench.make_batch(2, 3)
    put = torch.tensor([1, 2, 3])
    longer = replace(
        batch,
        full_responses=[torch.cat([r, put]) for r in batch.responses],
        drawn=[torch.tensor([True] * len(r) + [False] * 3) for r in batch.responses],
    )

    found = model.logprobs(longer, temperature=1.0).logprobs_T

    torch.testing.assert_close(found, model.logprobs(batch, temperature=1.0).logprobs_T)


@pytest.mark.parametrize("name", sorted(set(PARAMS) - {"dpo"}))
def test_every_algorithm_counts_drawn_tokens_alone(bench: Any, name: str) -> None:
    batch = bench.make_batch(4, 4)
    batch.scalars["reward"] = torch.randn(16, generator=torch.Generator().manual_seed(2))
    for column in ("values", "teacher_logprobs"):
        batch.fields[column] = [torch.full((len(r),), -1.0) for r in batch.responses]
    algorithm, params = algorithm_of(name), PARAMS[name]().resolved(max_response_length=64)
    losses = []
    for samples in (batch, with_answers(batch)):
        samples = replace(samples, fields=dict(samples.fields), scalars=dict(samples.scalars))
        algorithm.prepare(samples, params)
        logprobs_T = torch.cat(samples.fields["old_logprobs"]) + 0.01
        out = algorithm.loss(logprobs_T, samples, params, Totals.of([samples]))
        losses.append(float(out.loss))

    assert losses[0] == losses[1]


def test_answers_go_along_wherever_samples_go(bench: Any) -> None:
    batch = with_answers(bench.make_batch(3, 4))
    routes = [torch.arange(3 * len(text)).to(torch.uint8) for text in batch.full_responses]
    batch = replace(batch, routes=routes)

    parts = batch.by_group()
    back = SampleBatch.join(parts)
    sent = unpack(pack(batch))

    for other in (back, sent):
        columns = ("full_responses", "drawn", "routes")
        for ours, theirs in ((getattr(batch, c), getattr(other, c)) for c in columns):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert count_tokens(batch) == sum(map(len, batch.full_responses)) + sum(map(len, batch.prompts))
    tokens_BS, _, predicts_BS = pad_batch(batch)
    following_BS = torch.roll(tokens_BS, -1, 1)
    assert torch.equal(following_BS[predicts_BS], torch.cat(batch.responses))
