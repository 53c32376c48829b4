"""Checks of training: GRPO steps of an engine on the device, beside those of `torch` on the host."""

import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.cli.bring_up.equipment import MODEL, make_model, open_device
from rljob_runtime.cli.bring_up.place import Differs, NotApplicable, Place
from rljob_runtime.cli.bring_up.record import Figures
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine, make_update
from rljob_runtime.weights.held_policy import load_held
from rljob_runtime.worker.training_objective import policy_objective

GROUPS, SAMPLES, PROMPT, RESPONSE = 4, 4, 24, 48
STEPS = 2
LIMITS = {"logprobs": 1e-3, "loss": 5e-4, "gradient_norm": 5e-3, "weights": 1e-4}
"""Largest differences: of log-probs in nats, of losses, of norms as a share of them, of weights."""
HOST = torch.device("cpu")
ADAPTED = "mindspeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What steps left. tokens_per_second: of the last one, prompts counted once. device: where its weights
    lie."""

    logprobs_T: Tensor
    metrics: list[dict[str, float]]
    weights: dict[str, Tensor]
    tokens_per_second: float
    device: str


def torch_step(place: Place) -> Figures:
    """Of the engine `torch`."""
    return _compared(place, "torch")


def megatron_step(place: Place) -> Figures:
    """Of `mindspeed` on NPUs, else of `megatron`. Raises NotApplicable where it is not installed."""
    engine = ADAPTED if place.on_npus else "megatron"
    for package in {"megatron", engine}:
        if find_spec(package) is None:
            raise NotApplicable(f"{package} is not installed")
    return {"engine": engine, **_compared(place, engine)}


def _compared(place: Place, engine: str) -> Figures:
    """First the host's: MindSpeed changes torch when it is imported."""
    torch.set_num_threads(1)  # as on the device; others that wait for a processor spin
    path = make_model(place)
    expected = train(path, "torch", HOST, MemoryLedger(device="host"))
    backend = open_device(place)
    found = train(path, engine, backend.device, backend.ledger, expected.logprobs_T)
    if found.device != backend.device.type:
        raise Differs(f"{engine} trains weights on {found.device}, not on {backend.device.type}")
    gaps = gaps_of(found, expected)
    wrong = [
        f"{name} by {gap:.2g} (at most {LIMITS[name]:g})"
        for name, gap in gaps.items()
        if not gap <= LIMITS[name]
    ]
    if wrong:
        raise Differs(f"{STEPS} steps of {engine} differ from the host's: {', '.join(wrong)}")
    return {
        "tokens_per_second": found.tokens_per_second,
        "host_tokens_per_second": expected.tokens_per_second,
        **{f"gap_{name}": gap for name, gap in gaps.items()},
    }


def gaps_of(found: Trained, expected: Trained) -> dict[str, float]:
    """By the names of LIMITS."""
    pairs = list(zip(found.metrics, expected.metrics, strict=True))
    norms = [(one["gradient_norm"], other["gradient_norm"]) for one, other in pairs]
    return {
        "logprobs": float((found.logprobs_T - expected.logprobs_T).abs().max()),
        "loss": max(abs(one["loss"] - other["loss"]) for one, other in pairs),
        "gradient_norm": max(abs(one / other - 1) for one, other in norms),
        "weights": max(
            float((found.weights[name] - weight).abs().max())
            for name, weight in expected.weights.items()
        ),
    }


def train(
    path: Path, name: str, device: torch.device, ledger: MemoryLedger, drawn_T: Tensor | None = None
) -> Trained:
    """STEPS steps on the same samples. drawn_T: log-probs that they were drawn with; the engine's own."""
    spec, ranks = _spec(name), UpdateRanks()
    held = load_held(path, ranks, dtype=torch.float32, device=device)
    engine = make_update(
        UpdateSetup(
            spec=spec,
            model=path,
            policy=held.model,
            purposes=held.purposes,
            total_steps=10,
            ranks=ranks,
            ledger=ledger,
        )
    )
    samples = _samples()
    before_T = engine.logprobs(samples)
    drawn = samples.split_by_sample(before_T if drawn_T is None else drawn_T)
    samples.fields.update(rollout_logprobs=drawn, old_logprobs=drawn, reference_logprobs=drawn)
    metrics = []
    for _ in range(STEPS):
        started = time.perf_counter()
        metrics.append(_step(engine, spec, samples))
        seconds = time.perf_counter() - started
    tokens = sum(map(len, samples.prompts)) + samples.num_tokens
    return Trained(
        logprobs_T=before_T,
        metrics=metrics,
        weights={n: weight.detach().cpu().clone() for n, weight in engine.weights()},
        tokens_per_second=tokens / seconds,
        device=next(weight.device.type for _, weight in engine.weights()),
    )


def _step(engine: AnyUpdateEngine, spec: ResolvedSpec, samples: SampleBatch) -> dict[str, float]:
    objective = policy_objective(spec, KlControl.of(spec.algorithm.params))
    objective.prepare(samples)
    begun = engine.begin(objective.loss)
    try:
        for group in samples.by_group():
            begun.add(group)
        return engine.finish(begun, groups_with_signal=GROUPS)
    finally:
        begun.discard()


def _samples() -> SampleBatch:
    """Groups of unequal lengths, with rewards of their own."""
    random = torch.Generator().manual_seed(1)

    def tokens(most: int) -> Tensor:
        length = int(torch.randint(1, most + 1, (), generator=random))
        return torch.randint(0, int(MODEL["vocab_size"]), (length,), generator=random)

    number = GROUPS * SAMPLES
    return SampleBatch(
        prompts=[tokens(PROMPT) for _ in range(GROUPS)],
        group_of_B=torch.arange(GROUPS).repeat_interleave(SAMPLES),
        responses=[tokens(RESPONSE) for _ in range(number)],
        scalars={"reward": torch.randn(number, generator=random)},
    )


def _spec(engine: str) -> ResolvedSpec:
    job: dict[str, Any] = {
        "apiVersion": "rljob.io/v1beta1", "kind": "RLJob", "metadata": {"name": "bring-up"},
        "spec": {
            "steps": 10,
            "model": {"path": "model"},
            "data": {"jsonl": {"path": "a"}},
            "rewards": [{"name": "r", "type": "exact"}],
            "algorithm": {"name": "grpo", "params": {"klCoefficient": 0.1}},
            "batch": {
                "globalBatchSize": GROUPS, "samplesPerPrompt": SAMPLES,
                "maxPromptLength": PROMPT, "maxResponseLength": RESPONSE,
            },
            "update": {
                "engine": engine,
                # epsilon: else rounding errors of small gradients would move weights as far as others do
                "optimizer": {"learningRate": 1e-3, "epsilon": 1e-3, "weightDecay": 0.1},
            },
        },
    }  # fmt: skip
    return resolve(read_job(job)).spec
