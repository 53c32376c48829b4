"""Makes a device's part of the reshard, where both engines' weights are tensors that a plan can move.

Called by `build`. All devices decide alike, from the job and the model's config alone.
"""

from pathlib import Path

import torch.distributed as dist

from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.devices import can_reshard
from rljob_plan.resharding.job_layouts import plan_of_job
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_runtime.devices.backend import Backend
from rljob_runtime.models.config import UnsupportedArchitecture, read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.lora import adapted_matrices
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.rollout.rollout_engine import RolloutEngine, SlicedEngine
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.weights.held_policy import HeldPolicy, shape_of
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.merging import AdapterMerge, as_trained
from rljob_runtime.weights.reshard.strategies import STRATEGIES
from rljob_runtime.weights.reshard_checks import ReshardChecks
from rljob_runtime.weights.reshard_state import Reshard
from rljob_runtime.weights.rollout_weights import RolloutWeights


def swaps(spec: RLJobSpec, model: Path) -> bool:
    """Whether a device holds one layout at a time."""
    return spec.resharding.strategy == "allgather-swap" and is_planned(spec, model)


def is_planned(spec: RLJobSpec, model: Path) -> bool:
    """Whether weights go between the layouts by a plan. Otherwise they go as a stream of whole tensors, as do
    those of models that transformers computes."""
    if spec.resharding.strategy not in STRATEGIES or not can_reshard(spec):
        return False
    try:
        read_architecture(read_config(model))
    except UnsupportedArchitecture:
        return False
    return shape_of(model) is not None


def rollout_weights(
    engine: RolloutEngine | None, spec: RLJobSpec, *, model: Path, backend: Backend
) -> RolloutWeights | None:
    """A new engine's weights; None without a plan. A swap frees them, as nobody generates before the first
    reshard."""
    if not isinstance(engine, SlicedEngine) or not is_planned(spec, model):
        return None
    weights = RolloutWeights(engine.slices(), backend.ledger)
    if swaps(spec, model):
        engine.sleep()
        weights.free()
    return weights


def make_reshard(
    spec: RLJobSpec,
    model: Path,
    engine: SlicedEngine,
    rollout: RolloutWeights,
    policy: HeldPolicy,
    *,
    backend: Backend,
) -> Reshard:
    """All devices of the job call it together, after all other groups were made.

    Raises WeightsError where the engines hold other slices than the plan has.
    """
    shape = shape_of(model)
    assert shape is not None, "plans are made of known shapes"
    plan = plan_of_job(spec, shape)
    trained, generated = DTYPES[spec.update.dtype], DTYPES[spec.rollout.dtype]
    sent = min(trained, generated, key=lambda dtype: dtype.itemsize)
    group = dist.group.WORLD if dist.is_initialized() else None
    merge = _merge(policy.model, plan)
    resharder = Resharder(
        plan,
        backend,
        sent=sent,
        timeout_seconds=spec.flow.stage_timeout_seconds,
        merge=merge or as_trained,
    )
    checks = ReshardChecks(
        plan,
        resharder.device,
        sent=sent,
        generated=generated,
        group=group,
        wait=resharder.wait,
        merge=merge or as_trained,
    )
    update = policy.slices()
    checks.complete(update, trains=True)
    checks.complete(rollout.slices, trains=False)
    assert spec.resharding.strategy is not None, "resolve() fills it"
    strategy = STRATEGIES[spec.resharding.strategy](resharder, update, backend)
    return Reshard(
        plan=plan,
        device=resharder.device,
        resharder=resharder,
        strategy=strategy,
        checks=checks,
        update=update,
        rollout=rollout,
        engine=engine,
        policy=policy.model,
        ledger=backend.ledger,
        vocab_size=shape.vocab,
        max_length=spec.batch.max_prompt_length + spec.batch.max_response_length,
        merge=merge,
    )


def _merge(model: PolicyModel, plan: ReshardPlan) -> AdapterMerge | None:
    """Of a model with adapters."""
    if not isinstance(model, Decoder) or not adapted_matrices(model):
        return None
    device = dist.get_rank() if dist.is_initialized() else 0
    return AdapterMerge(model, {piece.tensor.name: piece.box for piece in plan.update.held(device)})
