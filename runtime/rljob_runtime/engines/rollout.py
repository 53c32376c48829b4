"""The table of rollout engines: makes the one that the job names, on this device."""

from pathlib import Path

import torch

from rljob_api.rljob import RLJobSpec
from rljob_runtime.backends.ledger import MemoryLedger
from rljob_runtime.engines.base import RolloutEngine

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def make_rollout(spec: RLJobSpec, *, model: Path, ledger: MemoryLedger) -> RolloutEngine:
    """The engine `spec.rollout.engine` with the weights of `model`.

    Room for spec.rollout.maxSequences sequences of the longest prompt and response. Raises
    ConfigError where the engine is not installed or cannot run the model, DeviceMemoryError.
    """
    max_length = spec.batch.max_prompt_length + spec.batch.max_response_length
    dtype = DTYPES[spec.rollout.dtype]
    if spec.rollout.engine == "vllm":
        from rljob_runtime.engines.rollout_vllm import VllmRollout

        return VllmRollout(
            model,
            dtype=dtype,
            max_sequences=spec.rollout.max_sequences,
            max_length=max_length,
            seed=spec.seed,
            truncates=spec.rollout.top_p < 1 or spec.rollout.top_k > 0,
        )
    from rljob_runtime.engines.rollout_torch import make_torch_rollout

    return make_torch_rollout(
        model,
        dtype=dtype,
        max_sequences=spec.rollout.max_sequences,
        max_length=max_length,
        ledger=ledger,
        quantization=spec.rollout.quantization,
    )
