"""Seconds of a training step in one process: our update engine beside transformers with torch's AdamW.

Forward pass, backward pass, clipping and optimizer step on the same model directory, samples and loss, in
float32 on all cores; the sides take turns, each in a process of its own, and their losses are compared.
*RL-like*: groups of 8 samples of ragged lengths that share a long prompt. *Dense*: every sample has its own
prompt, and all lengths are equal. transformers gets its samples padded, twice: as one writes it (eager
attention, a mask, logits of all tokens), and at its best (SDPA, no mask where nothing is padded, logits of
responses alone, AdamW's fused kernel). Our step computes the entropy of every token as well.
`engines.megatron` does the same with the engine `megatron`.
"""

# B samples, W width with padding, R width of responses, V vocabulary

import argparse
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.support.models import SIZES, make_model
from benchmarks.support.results import Result, report, summarize
from benchmarks.support.turns import Do, take_turns
from rljob_api.spec.engines import Optimizer
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.samples.sample import SampleBatch

NUM_CORES = len(os.sched_getaffinity(0))
GROUPS = {"0.8M": 8, "24.7M": 4, "135M": 1}
"""Models, and groups of a step."""
SETTINGS = Optimizer()
PLAIN, BEST = "transformers, as written", "transformers, at its best"
MOST_APART = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Samples of one optimizer step. prompt_lengths: between the two; longest: of a response.

    ragged: lengths are geometric with a mean of a third of the longest, which one sample has.
    """

    name: str
    num_groups: int
    samples: int
    prompt_lengths: tuple[int, int]
    longest: int
    vocabulary: int
    ragged: bool
    target: float

    def batch(self) -> SampleBatch:
        """Always the same."""
        draw = random.Random(0)

        def tokens(count: int) -> Tensor:
            return torch.tensor([draw.randrange(self.vocabulary) for _ in range(count)])

        number = self.num_groups * self.samples
        lengths = [self.longest] * number
        if self.ragged:
            lengths[1:] = [
                min(self.longest, 1 + int(draw.expovariate(3 / self.longest))) for _ in lengths[1:]
            ]
        return SampleBatch(
            prompts=[tokens(draw.randint(*self.prompt_lengths)) for _ in range(self.num_groups)],
            group_of_B=torch.arange(self.num_groups).repeat_interleave(self.samples),
            responses=[tokens(length) for length in lengths],
            scalars={"advantage": torch.tensor([draw.gauss(0, 1) for _ in lengths])},
        )


def works(size: str, groups: int) -> list[Work]:
    """Both kinds of work for a model."""
    vocabulary = SIZES[size].vocab_size
    return [
        Work(
            name=f"RL-like, {groups} × 8 samples",
            num_groups=groups,
            samples=8,
            prompt_lengths=(192, 256),
            longest=192,
            vocabulary=vocabulary,
            ragged=True,
            target=1.3,
        ),
        Work(
            name=f"dense, {4 * groups} samples",
            num_groups=4 * groups,
            samples=1,
            prompt_lengths=(128, 128),
            longest=128,
            vocabulary=vocabulary,
            ragged=False,
            target=1.0,
        ),
    ]


def weighted(logprobs_T: Tensor, batch: SampleBatch, totals: Totals) -> LossOutput:
    """Minus the log-probs times their samples' advantages (REINFORCE), a mean over tokens."""
    loss = -(logprobs_T * batch.spread("advantage")).sum() / totals.num_tokens
    return LossOutput(loss=loss, mean_over="tokens", token_sums={}, maxima={})


def make_ours(path: Path) -> Do:
    """The update engine `torch`."""
    from rljob_runtime.models.loading import load_decoder
    from rljob_runtime.update.update_torch import TorchUpdateEngine

    model = load_decoder(path, dtype=torch.float32)
    engine = TorchUpdateEngine(model, optimizer=SETTINGS, total_steps=100, temperature=1.0)

    def step(work: Work, turn: int) -> float:
        return engine.train([work.batch()], weighted, groups_with_signal=1)["loss"]

    return step


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """Prompts to the left of responses, padding outside of both. mask_BW: 1 where there is a token."""

    ids_BW: Tensor
    mask_BW: Tensor
    width: int

    @classmethod
    def of(cls, batch: SampleBatch) -> "Padded":
        """The samples with their prompts."""
        prompts = [batch.prompts[group] for group in batch.group_of_B.tolist()]
        left, right = max(map(len, prompts)), max(map(len, batch.responses))
        ids, mask = (torch.zeros(len(prompts), left + right).long() for _ in range(2))
        for row, (prompt, response) in enumerate(zip(prompts, batch.responses, strict=True)):
            ids[row, left - len(prompt) : left + len(response)] = torch.cat([prompt, response])
            mask[row, left - len(prompt) : left + len(response)] = 1
        return cls(ids_BW=ids, mask_BW=mask, width=right)


def make_transformers(path: Path, *, best: bool) -> Do:
    """transformers' model of the same directory."""
    from transformers import AutoModelForCausalLM

    attention = "sdpa" if best else "eager"
    model: Any = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=attention
    )
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=SETTINGS.learning_rate,
        betas=(SETTINGS.beta1, SETTINGS.beta2),
        eps=SETTINGS.epsilon,
        weight_decay=SETTINGS.weight_decay,
        fused=best or None,
    )

    def step(work: Work, turn: int) -> float:
        batch = work.batch()
        padded = Padded.of(batch)
        mask_BW = None if best and bool(padded.mask_BW.all()) else padded.mask_BW
        places_BW = (padded.mask_BW.cumsum(1) - 1).clamp(min=0)
        more = {"logits_to_keep": padded.width + 1} if best else {}
        logits = model(
            padded.ids_BW, attention_mask=mask_BW, position_ids=places_BW, use_cache=False, **more
        ).logits
        logits_BRV = logits[:, -padded.width - 1 : -1]
        targets_BR = padded.ids_BW[:, -padded.width :]
        chosen_BR = logits_BRV.gather(-1, targets_BR[..., None])[..., 0]
        logprobs_BR = chosen_BR - logits_BRV.logsumexp(-1)
        weights_BR = padded.mask_BW[:, -padded.width :] * batch.scalars["advantage"][:, None]
        loss = -(logprobs_BR * weights_BR).sum() / batch.num_tokens
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def compare(
    size: str,
    doing: Sequence[Work],
    make: Mapping[str, Callable[[Path], Do]],
    targets: Callable[[Work], dict[str, float]],
    *,
    threads: int,
    repetitions: int,
) -> list[Result]:
    """Seconds of a step of the first of the sides on one model, beside the others. targets: gains over these
    that we want. Raises AssertionError where the sides' losses differ."""
    ours, *peers = make
    seconds: dict[tuple[str, str], list[float]] = {}
    losses: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = make_model(Path(scratch) / "model", SIZES[size])
        sides = {side: partial(made, path) for side, made in make.items()}
        for turn in take_turns(sides, doing, threads=threads, repetitions=repetitions):
            seconds.setdefault((turn.work.name, turn.side), []).append(turn.seconds)
            losses.setdefault((turn.work.name, turn.side), []).append(turn.answer)
    for work in doing:
        for peer in peers:
            apart = max(
                abs(loss - other)
                for loss, other in zip(
                    losses[work.name, ours], losses[work.name, peer], strict=True
                )
            )
            assert apart < MOST_APART, f"{size} {work.name}: losses of {peer} are {apart:g} apart"
    return [
        summarize(
            f"{size} {work.name}",
            ours=seconds[work.name, ours],
            peers={peer: seconds[work.name, peer] for peer in peers},
            unit="s",
            better="lower",
            targets=targets(work),
        )
        for work in doing
    ]


def options(description: str) -> argparse.ArgumentParser:
    """Of both benchmarks of a step."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="one group on the smallest model")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--threads", type=int, default=NUM_CORES, help="of each side")
    parser.add_argument("--sizes", nargs="+", choices=GROUPS, default=list(GROUPS))
    return parser


def each_size(
    make: Mapping[str, Callable[[Path], Do]],
    targets: Callable[[Work], dict[str, float]],
    arguments: argparse.Namespace,
) -> list[Result]:
    """The comparison for every model that was asked for."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    results: list[Result] = []
    for size in arguments.sizes[:1] if arguments.quick else arguments.sizes:
        doing = works(size, 1 if arguments.quick else GROUPS[size])
        repetitions = 2 if arguments.quick else 7
        results += compare(
            size, doing, make, targets, threads=arguments.threads, repetitions=repetitions
        )
    return results


def main() -> None:
    arguments = options(__doc__.splitlines()[0]).parse_args()
    sides: dict[str, Callable[[Path], Do]] = {
        "rljob": make_ours,
        PLAIN: partial(make_transformers, best=False),
        BEST: partial(make_transformers, best=True),
    }
    results = each_size(sides, lambda work: dict.fromkeys((PLAIN, BEST), work.target), arguments)
    report(results, packages=["rljob", "torch", "transformers"], file=arguments.json)


if __name__ == "__main__":
    main()
