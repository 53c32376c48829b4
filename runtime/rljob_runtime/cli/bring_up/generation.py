"""The check of generation by vLLM, on NPUs by vllm-ascend, beside the model on the host."""

import time
from importlib.util import find_spec
from pathlib import Path

import torch

from rljob_runtime.cli.bring_up.equipment import MODEL, make_model, open_device
from rljob_runtime.cli.bring_up.place import Differs, NotApplicable, Place
from rljob_runtime.cli.bring_up.record import Figures
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, Sampling
from rljob_runtime.rollout.rollout_vllm import VllmRollout
from rljob_runtime.rollout.sync_probe import TOLERANCE, gap_of, policy_logprobs, probe_gap

PROMPTS, SAMPLES, LONGEST_PROMPT, RESPONSE = 4, 4, 16, 32
VOCABULARY = int(MODEL["vocab_size"])
CHANGED = 1.05
"""What all weights are multiplied by in the version that is given to the engine."""


def vllm(place: Place) -> Figures:
    """Generate, take other weights, and on a device of its own sleep and wake; log-probs tell whose weights
    there are. Raises NotApplicable where it is not installed."""
    for package in ("vllm", *(["vllm_ascend"] if place.on_npus else [])):
        if find_spec(package) is None:
            raise NotApplicable(f"{package} is not installed")
    path, backend = make_model(place), open_device(place)
    dtype = torch.float32 if place.emulated else torch.bfloat16
    engine = VllmRollout(
        path, dtype=dtype, max_sequences=16, max_length=LONGEST_PROMPT + RESPONSE, seed=1
    )
    _generate(engine)  # compiles what it must
    started = time.perf_counter()
    samples = _generate(engine)
    seconds = time.perf_counter() - started
    gap = _drawn_gap(path, samples)
    changed = load_decoder(path, dtype=torch.float32)
    with torch.no_grad():
        for _, weight in changed.named_hf_parameters():
            weight.mul_(CHANGED)
    engine.sleep()
    asleep = backend.memory()
    engine.load_weights(changed.named_hf_parameters(), version=1)
    engine.wake()
    synced = probe_gap(engine, changed, vocab_size=VOCABULARY, max_length=LONGEST_PROMPT + RESPONSE)
    for what, found in (("drawn tokens", gap), ("weights that it was given", synced)):
        if not found <= TOLERANCE[dtype]:
            raise Differs(
                f"log-probs of {what} are off by {found:.2g} nats (at most {TOLERANCE[dtype]:g})"
            )
    tokens = sum(len(sample.token_ids) for sample in samples)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "tokens_per_second": tokens / seconds,
        "gap_drawn_nats": gap,
        "gap_given_nats": synced,
        "asleep_reserved_gib": asleep.reserved_bytes / 2**30,
    }


def _generate(engine: VllmRollout) -> list[Generated]:
    sampling = Sampling(
        temperature=1.0, top_p=1.0, top_k=0, max_response_length=RESPONSE, eos_ids=()
    )
    found = [sample for part in engine.generate(prompt_groups(), sampling) for sample in part]
    if len(found) != PROMPTS * SAMPLES:
        raise Differs(f"{len(found)} of {PROMPTS * SAMPLES} samples came")
    return found


def prompt_groups() -> list[PromptGroup]:
    """The same at each call."""
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
    return [(7 * place + 13 * number) % VOCABULARY for place in range(LONGEST_PROMPT - number)]


def _drawn_gap(path: Path, samples: list[Generated]) -> float:
    """Of the log-probs that samples came with, from the model's on the host."""
    model = load_decoder(path, dtype=torch.float32)
    gaps = []
    for sample in samples:
        prompt = _prompt(int(sample.uid.partition("/")[0]))
        expected_T = policy_logprobs(model, [[*prompt, *sample.token_ids]])[len(prompt) - 1 :]
        gaps.append(gap_of([sample.logprobs], expected_T))
    return max(gaps)
