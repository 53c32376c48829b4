"""Checks of training: compare GRPO steps of an engine on the device with those of `torch` on the host."""

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
from rljob_runtime.cli.bring_up.place import CheckContext, NotApplicable, WrongResult
from rljob_runtime.cli.bring_up.record import Figures
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine, make_update
from rljob_runtime.weights.held_policy import load_local_policy
from rljob_runtime.worker.training_objective import policy_objective

GROUPS, SAMPLES, PROMPT, RESPONSE = 4, 4, 24, 48
STEPS = 2
LIMITS = {"logprobs": 1e-3, "loss": 5e-4, "gradient_norm": 5e-3, "weights": 1e-4}
"""Allowed differences: log-probs in nats, losses, relative gradient norms, weights."""
HOST = torch.device("cpu")
NPU_ENGINE = "mindspeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Results of several training steps. tokens_per_second: of the last step, counting each prompt once.
    device: type of the weights' device."""

    logprobs_T: Tensor
    metrics: list[dict[str, float]]
    weights: dict[str, Tensor]
    tokens_per_second: float
    device: str


def torch_step(context: CheckContext) -> Figures:
    """Check the engine `torch` on this device."""
    return _compare_engine(context, "torch")


def megatron_step(context: CheckContext) -> Figures:
    """Check `mindspeed` on NPUs, else `megatron`. Raises NotApplicable where it is not installed."""
    engine = NPU_ENGINE if context.on_npus else "megatron"
    for package in {"megatron", engine}:
        if find_spec(package) is None:
            raise NotApplicable(f"{package} is not installed")
    return {"engine": engine, **_compare_engine(context, engine)}


def _compare_engine(context: CheckContext, engine: str) -> Figures:
    """Train on the host first, as MindSpeed patches torch when it is imported; then compare the device."""
    torch.set_num_threads(1)  # as on the device; more threads would spin while they wait for a core
    path = make_model(context)
    expected = train(path, "torch", HOST, MemoryLedger(device="host"))
    backend = open_device(context)
    actual = train(path, engine, backend.device, backend.ledger, expected.logprobs_T)
    if actual.device != backend.device.type:
        raise WrongResult(
            f"{engine} trains weights on {actual.device}, not on {backend.device.type}"
        )
    gaps = gaps_of(actual, expected)
    wrong = [
        f"{name} by {gap:.2g} (at most {LIMITS[name]:g})"
        for name, gap in gaps.items()
        if not gap <= LIMITS[name]
    ]
    if wrong:
        raise WrongResult(f"{STEPS} steps of {engine} differ from the host's: {', '.join(wrong)}")
    return {
        "tokens_per_second": actual.tokens_per_second,
        "host_tokens_per_second": expected.tokens_per_second,
        **{f"gap_{name}": gap for name, gap in gaps.items()},
    }


def gaps_of(actual: TrainingResult, expected: TrainingResult) -> dict[str, float]:
    """Return the differences of two training results, by the names of LIMITS."""
    pairs = list(zip(actual.metrics, expected.metrics, strict=True))
    norms = [
        (actual_metrics["gradient_norm"], expected_metrics["gradient_norm"])
        for actual_metrics, expected_metrics in pairs
    ]
    return {
        "logprobs": float((actual.logprobs_T - expected.logprobs_T).abs().max()),
        "loss": max(
            abs(actual_metrics["loss"] - expected_metrics["loss"])
            for actual_metrics, expected_metrics in pairs
        ),
        "gradient_norm": max(
            abs(actual_metrics / expected_metrics - 1) for actual_metrics, expected_metrics in norms
        ),
        "weights": max(
            float((actual.weights[name] - weight).abs().max())
            for name, weight in expected.weights.items()
        ),
    }


def train(
    path: Path,
    name: str,
    device: torch.device,
    ledger: MemoryLedger,
    sampled_logprobs_T: Tensor | None = None,
) -> TrainingResult:
    """Train STEPS steps on fixed samples. sampled_logprobs_T: log-probs of the sampling policy; default: the
    engine's."""
    spec, ranks = _spec(name), UpdateRanks()
    policy = load_local_policy(path, ranks, dtype=torch.float32, device=device)
    engine = make_update(
        UpdateSetup(
            spec=spec,
            model=path,
            policy=policy.model,
            purposes=policy.purposes,
            total_steps=10,
            ranks=ranks,
            ledger=ledger,
        )
    )
    samples = _samples()
    initial_logprobs_T = engine.logprobs(samples)
    rollout_logprobs = samples.split_by_sample(
        initial_logprobs_T if sampled_logprobs_T is None else sampled_logprobs_T
    )
    samples.fields.update(
        rollout_logprobs=rollout_logprobs,
        old_logprobs=rollout_logprobs,
        reference_logprobs=rollout_logprobs,
    )
    metrics = []
    for _ in range(STEPS):
        started = time.perf_counter()
        metrics.append(_train_step(engine, spec, samples))
        seconds = time.perf_counter() - started
    tokens = sum(map(len, samples.prompts)) + samples.num_tokens
    return TrainingResult(
        logprobs_T=initial_logprobs_T,
        metrics=metrics,
        weights={n: weight.detach().cpu().clone() for n, weight in engine.weights()},
        tokens_per_second=tokens / seconds,
        device=next(weight.device.type for _, weight in engine.weights()),
    )


def _train_step(
    engine: AnyUpdateEngine, spec: ResolvedSpec, samples: SampleBatch
) -> dict[str, float]:
    objective = policy_objective(spec, KlControl.of(spec.algorithm.params))
    objective.prepare(samples)
    accumulation = engine.begin(objective.loss)
    try:
        for group in samples.by_group():
            accumulation.add(group)
        return engine.finish(accumulation, groups_with_signal=GROUPS)
    finally:
        accumulation.discard()


def _samples() -> SampleBatch:
    """Return groups of samples with unequal lengths and random rewards."""
    random = torch.Generator().manual_seed(1)

    def tokens(max_length: int) -> Tensor:
        length = int(torch.randint(1, max_length + 1, (), generator=random))
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
