"""Engines of one precision in a process of their own: what they hold, how fast they are, how far apart.

Called by `precision.py`, whose sides take turns.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines import rollout as generation
from benchmarks.engines import update as training
from benchmarks.support.turns import Do
from rljob_api.spec.engines import Optimizer
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.task.tokenizer import load_tokenizer
from rljob_runtime.update.update_torch import TorchUpdateEngine

STEP, GENERATE, KEPT = "step", "generate", "activations"
HELD = (
    MemoryKind.UPDATE_WEIGHTS,
    MemoryKind.GRADIENTS,
    MemoryKind.OPTIMIZER,
    MemoryKind.ROLLOUT_WEIGHTS,
)
APART = ("mean log-prob difference", "KL(rollout ‖ update)")
WORDS, SAMPLES, LONGEST = 64, 8, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a job says of it."""

    update: str = "float32"
    rollout: str = "float32"
    quantization: str = "none"
    moments: str = "float32"
    epsilon: float = 1e-8

    def apply(self, spec: dict[str, Any]) -> None:
        """Write it into a job."""
        spec["rollout"] = {"dtype": self.rollout, "quantization": self.quantization}
        update = spec.setdefault("update", {})
        update["dtype"] = self.update
        update.setdefault("optimizer", {}).update(
            {"momentsDtype": self.moments, "epsilon": self.epsilon}
        )


FULL = "full precision"
PRECISIONS = {
    FULL: Precision(),
    "bfloat16 training": Precision(update="bfloat16"),
    "int8 rollout": Precision(quantization="int8"),
    "float8 moments": Precision(moments="float8"),
    "all, bfloat16 rollout": Precision(
        update="bfloat16", rollout="bfloat16", quantization="int8", moments="float8"
    ),
}


def make_side(path: Path, trained: Path, precision: Precision, size: str, quick: bool) -> Do:
    """Engines for the model at `path`, of that size. Works: STEP; GENERATE, which answers with tokens; HELD,
    bytes at their peak; KEPT, bytes for the backward pass; APART, of both engines with the weights at
    `trained`."""
    ledger = MemoryLedger(device="benchmark")
    update = _update(path, precision, ledger)
    rollout = _rollout(path, precision, longest=generation.LONGEST_TOKENS, ledger=ledger)
    generate = generation.around(rollout)
    batch = training.works(size, 1)[0].batch()  # all sides hold what they keep of it at a time
    work = generation.works(size)[1 if quick else 3]
    fixed = dict(zip(APART, _apart(trained, precision), strict=True))
    fixed[KEPT] = _kept(path, precision, batch)

    def do(name: str, turn: int) -> float:
        if name == STEP:
            return update.train([batch], training.weighted, groups_with_signal=1)["loss"]
        if name == GENERATE:
            return generate(work, turn)
        return fixed[name] if name in fixed else ledger.report().kind_peak_bytes[MemoryKind(name)]

    return do


def _update(
    path: Path, precision: Precision, ledger: MemoryLedger | None = None
) -> TorchUpdateEngine:
    return TorchUpdateEngine(
        load_decoder(path, dtype=DTYPES[precision.update]),
        optimizer=Optimizer.model_validate({"moments_dtype": precision.moments}),
        total_steps=100,
        temperature=1.0,
        ledger=ledger,
    )


def _rollout(
    path: Path, precision: Precision, *, longest: int, ledger: MemoryLedger | None = None
) -> TorchRollout:
    return TorchRollout(
        path,
        dtype=DTYPES[precision.rollout],
        max_sequences=generation.MOST_SAMPLES,
        max_length=longest,
        ledger=ledger,
        quantization="int8" if precision.quantization == "int8" else "none",
    )


def _kept(path: Path, precision: Precision, batch: SampleBatch) -> int:
    """Bytes that a forward pass keeps for the backward pass beside the weights."""
    model = load_decoder(path, dtype=DTYPES[precision.update])
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        said = model.logprobs(batch, temperature=1.0)
    assert said.logprobs_T.requires_grad, "nothing is kept of a pass without gradient"
    return sum(size for place, size in kept.items() if place not in weights)


def _apart(trained: Path, precision: Precision) -> tuple[float, float]:
    """Of log-probs of what the rollout engine answers to words: the mean absolute difference, and the k3
    estimate of the divergence, both in nats a token. The rollout engine has the update engine's weights."""
    tokenizer, draw = load_tokenizer(trained), random.Random(11)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(WORDS)]
    prompts = [tokenizer.encode(f"{word}=") for word in words]
    update, rollout = _update(trained, precision), _rollout(trained, precision, longest=64)
    rollout.load_weights(update.weights(), version=1)
    samples = list(_answers(rollout, prompts, tokenizer.eos_ids))
    batch = SampleBatch(
        prompts=[torch.tensor(prompt) for prompt in prompts],
        group_of_B=torch.tensor([group for group, _, _ in samples]),
        responses=[torch.tensor(ids) for _, ids, _ in samples],
    )
    rollout_T = torch.tensor([value for _, _, values in samples for value in values])
    difference_T = (update.logprobs(batch) - rollout_T).double()
    divergence = (torch.expm1(difference_T) - difference_T).mean()
    return float(difference_T.abs().mean()), float(divergence)


def _answers(
    rollout: TorchRollout, prompts: list[list[int]], eos_ids: tuple[int, ...]
) -> Iterator[tuple[int, list[int], list[float]]]:
    """(prompt, token ids, log-probs) of each sample."""
    groups = [
        PromptGroup(
            group=str(index),
            token_ids=prompt,
            uids=[f"{index}/{sample}" for sample in range(SAMPLES)],
            seeds=[(index << 16) + sample for sample in range(SAMPLES)],
        )
        for index, prompt in enumerate(prompts)
    ]
    sampling = Sampling(
        temperature=1.0, top_p=1.0, top_k=0, max_response_length=LONGEST, eos_ids=eos_ids
    )
    for chunk in rollout.generate(groups, sampling):
        for sample in chunk:
            yield int(sample.uid.partition("/")[0]), sample.token_ids, sample.logprobs
