"""The table of rollout engines: makes the one that the job names, on this device."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from rljob_api.rljob import RLJobSpec
from rljob_runtime.backends.ledger import MemoryLedger
from rljob_runtime.engines.base import RolloutEngine, RolloutSetup
from rljob_runtime.extensions import check_members, load, rollout_use

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def make_rollout(spec: RLJobSpec, *, model: Path, ledger: MemoryLedger) -> RolloutEngine:
    """The engine `spec.rollout.engine` with the weights of `model`.

    Room for spec.rollout.maxSequences sequences of the longest prompt and response. Raises
    ConfigError where the engine is not installed or cannot run the model, DeviceMemoryError.
    """
    setup = RolloutSetup(
        spec=spec,
        model=model,
        dtype=DTYPES[spec.rollout.dtype],
        max_length=spec.batch.max_prompt_length + spec.batch.max_response_length,
        ledger=ledger,
    )
    return ENGINES.get(spec.rollout.engine, make_extension)(setup)


def make_torch(setup: RolloutSetup) -> RolloutEngine:
    """`torch`; engines of packages may wrap it."""
    from rljob_runtime.engines.rollout_torch import make_torch_rollout

    return make_torch_rollout(
        setup.model,
        dtype=setup.dtype,
        max_sequences=setup.spec.rollout.max_sequences,
        max_length=setup.max_length,
        ledger=setup.ledger,
        quantization=setup.spec.rollout.quantization,
    )


def make_vllm(setup: RolloutSetup) -> RolloutEngine:
    """`vllm`; engines of packages may wrap it."""
    from rljob_runtime.engines.rollout_vllm import VllmRollout

    rollout = setup.spec.rollout
    return VllmRollout(
        setup.model,
        dtype=setup.dtype,
        max_sequences=rollout.max_sequences,
        max_length=setup.max_length,
        seed=setup.spec.seed,
        truncates=rollout.top_p < 1 or rollout.top_k > 0,
    )


def make_extension(setup: RolloutSetup) -> RolloutEngine:
    """An installed package's."""
    use = rollout_use(setup.spec.rollout.engine)
    engine = load(use)(setup)
    check_members(engine, RolloutEngine, use)
    return cast(RolloutEngine, engine)


ENGINES: dict[str, Callable[[RolloutSetup], RolloutEngine]] = {
    "torch": make_torch,
    "vllm": make_vllm,
}
