"""Check generation by vLLM (on NPUs vllm-ascend) against the model on the host."""

import time
from importlib.util import find_spec
from pathlib import Path

import torch

from rljob_runtime.cli.bring_up.equipment import MODEL, make_model, open_device
from rljob_runtime.cli.bring_up.place import CheckContext, NotApplicable, WrongResult
from rljob_runtime.cli.bring_up.record import Figures
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, Sampling
from rljob_runtime.rollout.rollout_vllm import VllmRollout
from rljob_runtime.rollout.sync_probe import TOLERANCE, gap_of, policy_logprobs, probe_gap

PROMPTS, SAMPLES, LONGEST_PROMPT, RESPONSE = 4, 4, 16, 32
VOCABULARY = int(MODEL["vocab_size"])
WEIGHT_FACTOR = 1.05
"""The factor of all weights in the version that is loaded into the engine."""


def vllm(context: CheckContext) -> Figures:
    """Generate, sleep, load other weights and wake; log-probs show which weights the engine has. Raises
    NotApplicable where vLLM is not installed."""
    for package in ("vllm", *(["vllm_ascend"] if context.on_npus else [])):
        if find_spec(package) is None:
            raise NotApplicable(f"{package} is not installed")
    path, backend = make_model(context), open_device(context)
    dtype = torch.float32 if context.emulated else torch.bfloat16
    engine = VllmRollout(
        path, dtype=dtype, max_sequences=16, max_length=LONGEST_PROMPT + RESPONSE, seed=1
    )
    _generate(engine)  # warm-up: compiles kernels
    started = time.perf_counter()
    samples = _generate(engine)
    seconds = time.perf_counter() - started
    gap = _sampled_gap(path, samples)
    scaled_model = load_decoder(path, dtype=torch.float32)
    with torch.no_grad():
        for _, weight in scaled_model.named_hf_parameters():
            weight.mul_(WEIGHT_FACTOR)
    engine.sleep()
    asleep_memory = backend.memory()
    engine.load_weights(scaled_model.named_hf_parameters(), version=1)
    engine.wake()
    synced_gap = probe_gap(
        engine, scaled_model, vocab_size=VOCABULARY, max_length=LONGEST_PROMPT + RESPONSE
    )
    for source, gap_nats in (("drawn tokens", gap), ("weights that it was given", synced_gap)):
        if not gap_nats <= TOLERANCE[dtype]:
            raise WrongResult(
                f"log-probs of {source} are off by {gap_nats:.2g} nats (at most {TOLERANCE[dtype]:g})"
            )
    tokens = sum(len(sample.token_ids) for sample in samples)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "tokens_per_second": tokens / seconds,
        "gap_drawn_nats": gap,
        "gap_given_nats": synced_gap,
        "asleep_reserved_gib": asleep_memory.reserved_bytes / 2**30,
    }


def _generate(engine: VllmRollout) -> list[Generated]:
    sampling = Sampling(
        temperature=1.0, top_p=1.0, top_k=0, max_response_length=RESPONSE, eos_ids=()
    )
    samples = [sample for group in engine.generate(prompt_groups(), sampling) for sample in group]
    if len(samples) != PROMPTS * SAMPLES:
        raise WrongResult(f"{len(samples)} of {PROMPTS * SAMPLES} samples came")
    return samples


def prompt_groups() -> list[PromptGroup]:
    """Return the prompts, which are equal at each call."""
    return [
        PromptGroup(
            group=f"{number}",
            token_ids=_prompt(number),
            uids=[f"{number}/{sample}" for sample in range(SAMPLES)],
            seeds=[number * SAMPLES + sample for sample in range(SAMPLES)],
        )
        for number in range(PROMPTS)
    ]


def _prompt(number: int) -> list[int]:
    return [
        (7 * position + 13 * number) % VOCABULARY for position in range(LONGEST_PROMPT - number)
    ]


def _sampled_gap(path: Path, samples: list[Generated]) -> float:
    """Return the largest gap between the samples' log-probs and those of the model on the host."""
    model = load_decoder(path, dtype=torch.float32)
    gaps = []
    for sample in samples:
        prompt = _prompt(int(sample.uid.partition("/")[0]))
        expected_T = policy_logprobs(model, [[*prompt, *sample.token_ids]])[len(prompt) - 1 :]
        gaps.append(gap_of([sample.logprobs], expected_T))
    return max(gaps)
