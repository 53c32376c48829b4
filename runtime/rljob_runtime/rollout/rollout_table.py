"""The table of rollout engines: creates the one that the job names, on this device."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import torch

from rljob_api.model.architecture import Shape, read_shape
from rljob_api.spec.section import parse_quantity
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.memory import plan_memory
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.errors import ConfigError
from rljob_runtime.extensions import check_members, load, rollout_use
from rljob_runtime.models.config import read_config
from rljob_runtime.models.tower import VisionTowers
from rljob_runtime.rollout.rollout_engine import RolloutEngine, RolloutSetup
from rljob_runtime.rollout.rollout_grid import RolloutPurpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups

HOST = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def make_rollout(
    spec: ResolvedSpec,
    *,
    model: Path,
    ledger: MemoryLedger,
    groups: RolloutGroups | None = None,
    other_models: Mapping[str, Path] | None = None,
    device: torch.device = HOST,
    towers: VisionTowers | None = None,
    text_ids: int | None = None,
) -> RolloutEngine:
    """Return the engine `spec.rollout.engine` with the weights of `model`, or its shard of them.

    other_models: directories of other models on this device, by name. towers: of prompts with pictures.
    text_ids: as in `RolloutSetup`. Raises ConfigError where the engine is not installed or cannot run the
    model, DeviceMemoryError.
    """
    setup = RolloutSetup(
        spec=spec,
        model=model,
        dtype=DTYPES[spec.rollout.dtype],
        max_length=spec.batch.max_prompt_length + spec.batch.max_response_length,
        ledger=ledger,
        groups=groups,
        other_models=other_models or {},
        device=device,
        towers=towers,
        text_ids=text_ids,
    )
    return ENGINES.get(spec.rollout.engine, make_extension)(setup)


def make_torch(setup: RolloutSetup) -> RolloutEngine:
    """Return the engine `torch`; engines of packages may wrap it."""
    from rljob_runtime.rollout.rollout_torch import TorchRollout, make_torch_rollout

    engine = make_torch_rollout(
        setup.model,
        dtype=setup.dtype,
        max_sequences=setup.spec.rollout.max_sequences,
        max_length=setup.max_length,
        cache_tokens=planned_cache_tokens(setup),
        device=str(setup.device),
        ledger=setup.ledger,
        groups=setup.groups,
        quantization=setup.spec.rollout.quantization,
        pictures=setup.spec.model.vision is not None,
        towers=setup.towers,
        keeps_routes=setup.spec.update.router_replay,
        text_ids=setup.text_ids,
    )
    if setup.spec.has_turns and not isinstance(engine, TorchRollout):
        path = "spec.rollout.tools" if setup.spec.rollout.tools else "spec.data.environment"
        path = "spec.rollout.agent" if setup.spec.rollout.agent is not None else path
        raise ConfigError(
            f"{path}: transformers computes the model of {setup.model}, and takes nothing that was not drawn "
            "into what it generates; use a model of docs/models.md, or leave it out"
        )
    return engine


def make_vllm(setup: RolloutSetup) -> RolloutEngine:
    """Return the engine `vllm`; engines of packages may wrap it."""
    from rljob_runtime.rollout.rollout_vllm import VllmRollout

    rollout = setup.spec.rollout
    return VllmRollout(
        setup.model,
        dtype=setup.dtype,
        max_sequences=rollout.max_sequences,
        max_length=setup.max_length,
        seed=setup.spec.seed,
        truncates=rollout.top_p < 1 or rollout.top_k > 0,
        tensor=rollout.parallelism.tensor,
        replica=setup.groups[RolloutPurpose.REPLICA] if setup.groups is not None else None,
        int8=rollout.quantization == "int8",
        pictures=setup.spec.model.vision is not None,
        towers=setup.towers,
        text_ids=setup.text_ids,
        kv_cache_bytes=parse_quantity(rollout.kv_cache_memory) if rollout.kv_cache_memory else None,
    )


def _shape(model: Path) -> Shape | None:
    return read_shape(read_config(model), name=f"{model}/config.json")


def planned_cache_tokens(setup: RolloutSetup) -> int | None:
    """Return the tokens of the KV cache, as `rljob plan` computes them; None for a model of unknown shape.
    Such a model has no spec.rollout.kvCacheMemory (ConfigError)."""
    shape = _shape(setup.model)
    if shape is not None:
        shapes = {name: _shape(path) for name, path in setup.other_models.items()}
        others = {name: other for name, other in shapes.items() if other is not None}
        return plan_memory(setup.spec, shape.shown(setup.spec.model), others).kv_cache.tokens
    if setup.spec.rollout.kv_cache_memory is not None:
        raise ConfigError(
            f"spec.rollout.kvCacheMemory is for models whose shape is known, which that of {setup.model} "
            "is not; leave it out and bound the cache by spec.rollout.maxSequences"
        )
    return None


def make_extension(setup: RolloutSetup) -> RolloutEngine:
    """Return the engine of an installed package."""
    use = rollout_use(setup.spec.rollout.engine)
    engine = load(use)(setup)
    check_members(engine, RolloutEngine, use)
    return cast(RolloutEngine, engine)


ENGINES: dict[str, Callable[[RolloutSetup], RolloutEngine]] = {
    "torch": make_torch,
    "vllm": make_vllm,
}
