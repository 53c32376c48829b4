"""Makes a device's part of the reshard, where a plan can move weights from engine to engine.

Called by `build`. All devices decide alike, from the job and the model's config alone.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import can_reshard, update_mesh
from rljob_api.topology.fewer_replicas import with_replicas
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.resharding.job_layouts import plan_of_job
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.members import Members
from rljob_runtime.models.config import UnsupportedArchitecture, read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.lora import adapted_matrices
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.rollout.rollout_engine import RolloutEngine, SlicedEngine, TakingEngine
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.weights.held_policy import HeldPolicy, shape_of
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.merging import AdapterMerge, as_trained
from rljob_runtime.weights.reshard.strategies import STRATEGIES
from rljob_runtime.weights.reshard_checks import ReshardChecks
from rljob_runtime.weights.reshard_state import Planned, Reshard
from rljob_runtime.weights.rollout_weights import PassingWeights, RolloutRoom, RolloutWeights


def swaps(spec: ResolvedSpec, model: Path) -> bool:
    """Whether a device holds one layout at a time."""
    return spec.resharding.strategy == "allgather-swap" and is_planned(spec, model)


def is_planned(spec: ResolvedSpec, model: Path) -> bool:
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
    engine: RolloutEngine | None, spec: ResolvedSpec, *, model: Path, backend: Backend
) -> RolloutRoom | None:
    """Of a new engine; None without a plan. A swap frees them, as nobody generates before the first
    reshard."""
    weights: RolloutRoom
    if not is_planned(spec, model):
        return None
    if isinstance(engine, SlicedEngine):
        weights = RolloutWeights(engine.slices(), backend.ledger)
    elif isinstance(engine, TakingEngine):
        dtype = DTYPES[spec.rollout.dtype]
        weights = PassingWeights(dtype=dtype, device=backend.device, ledger=backend.ledger)
    else:
        return None
    if swaps(spec, model):
        engine.sleep()
        weights.free()
    return weights


def make_reshard(
    spec: ResolvedSpec,
    model: Path,
    policy: HeldPolicy | None,
    engine: SlicedEngine | TakingEngine | None,
    rollout: RolloutRoom | None,
    *,
    backend: Backend,
    text_ids: int,
) -> Reshard:
    """policy: of a device that trains. engine, rollout: of one that generates, with room for its weights.
    text_ids: those that may be drawn. It meets the others afterwards."""
    known = shape_of(model)
    assert known is not None, "plans are made of known shapes"
    shape = known.shown(spec.model)
    update = policy.slices() if policy is not None else {}

    def make(members: Members) -> Planned:
        return _plan(spec, shape, members, policy, update, rollout, backend)

    return Reshard(
        make=make,
        update=update,
        policy=policy.model if policy is not None else None,
        rollout=rollout,
        engine=engine,
        ledger=backend.ledger,
        vocab_size=min(shape.vocab, text_ids),
        max_length=spec.batch.max_prompt_length + spec.batch.max_response_length,
    )


def _plan(
    spec: ResolvedSpec,
    shape: Shape,
    members: Members,
    policy: HeldPolicy | None,
    update: Mapping[str, Tensor],
    rollout: RolloutRoom | None,
    backend: Backend,
) -> Planned:
    """Raises WeightsError where the engines hold other slices than the plan has."""
    plan = plan_of_job(_of_now(spec, members, trains=policy is not None), shape)
    trained, generated = DTYPES[spec.update.dtype], DTYPES[spec.rollout.dtype]
    sent = min(trained, generated, key=lambda dtype: dtype.itemsize)
    adapters = _merge(policy.model, plan, members.rank) if policy is not None else None
    merge = adapters or as_trained
    seconds = spec.flow.stage_timeout_seconds
    resharder = Resharder(
        plan,
        backend,
        sent=sent,
        timeout_seconds=seconds,
        members=members,
        merge=merge,
        deltas=spec.resharding.deltas,
    )
    checks = ReshardChecks(
        plan,
        members.rank,
        sent=sent,
        generated=generated,
        group=members.full_group,
        wait=resharder.wait,
        merge=merge,
    )
    if policy is not None:
        checks.complete(_elements(update), trains=True)
    if isinstance(rollout, RolloutWeights):
        checks.complete(_elements(rollout.slices), trains=False)
    strategy = STRATEGIES[spec.resharding.strategy](resharder, update, backend)
    return Planned(
        plan=plan,
        members=members,
        resharder=resharder,
        strategy=strategy,
        checks=checks,
        merge=adapters,
    )


def _elements(held: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: own.numel() for name, own in held.items()}


def _of_now(spec: ResolvedSpec, members: Members, *, trains: bool) -> ResolvedSpec:
    """With as many devices that train, and as many that generate, as there are. trains: whether this one
    does."""
    if spec.placement.mode == "colocated":
        return spec
    training = members.share(f"{trains}").count(f"{True}")
    update, rollout = spec.update.parallelism, spec.rollout.parallelism
    replica = update_mesh(update).size // update.data
    now = rollout.model_copy(update={"data": (members.size - training) // rollout.replica_devices})
    changed = {"rollout": spec.rollout.model_copy(update={"parallelism": now})}
    return with_replicas(spec.model_copy(update=changed), training // replica)


def _merge(model: PolicyModel, plan: ReshardPlan, device: int) -> AdapterMerge | None:
    """Of a model with adapters."""
    if not isinstance(model, Decoder) or not adapted_matrices(model):
        return None
    return AdapterMerge(
        model, {piece.tensor.name: piece.box for piece in plan.update.local_boxes(device)}
    )
