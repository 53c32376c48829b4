"""Create a device's end of the reshard, where a plan can move weights from engine to engine.

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
from rljob_runtime.weights.held_policy import LocalPolicy, shape_of
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.merging import AdapterMerge, as_trained
from rljob_runtime.weights.reshard.strategies import STRATEGIES
from rljob_runtime.weights.reshard_checks import ReshardChecks
from rljob_runtime.weights.reshard_state import Reshard, ReshardSetup
from rljob_runtime.weights.rollout_weights import RolloutBuffers, RolloutWeights, TransientWeights


def swaps(spec: ResolvedSpec, model: Path) -> bool:
    """Return whether a device holds one layout at a time."""
    return spec.resharding.strategy == "allgather-swap" and is_planned(spec, model)


def is_planned(spec: ResolvedSpec, model: Path) -> bool:
    """Return whether weights move between the layouts by a plan. Otherwise they are streamed as full tensors,
    as are those of models that transformers computes."""
    if spec.resharding.strategy not in STRATEGIES or not can_reshard(spec):
        return False
    try:
        read_architecture(read_config(model))
    except UnsupportedArchitecture:
        return False
    return shape_of(model) is not None


def rollout_weights(
    engine: RolloutEngine | None, spec: ResolvedSpec, *, model: Path, backend: Backend
) -> RolloutBuffers | None:
    """Return the memory of a new engine's weights; None without a plan. A swap frees it, as no device
    generates before the first reshard."""
    weights: RolloutBuffers
    if not is_planned(spec, model):
        return None
    if isinstance(engine, SlicedEngine):
        weights = RolloutWeights(engine.slices(), backend.ledger)
    elif isinstance(engine, TakingEngine):
        dtype = DTYPES[spec.rollout.dtype]
        weights = TransientWeights(dtype=dtype, device=backend.device, ledger=backend.ledger)
    else:
        return None
    if swaps(spec, model):
        engine.sleep()
        weights.free()
    return weights


def make_reshard(
    spec: ResolvedSpec,
    model: Path,
    policy: LocalPolicy | None,
    engine: SlicedEngine | TakingEngine | None,
    rollout: RolloutBuffers | None,
    *,
    backend: Backend,
    text_ids: int,
) -> Reshard:
    """Return a device's end of the reshard, which joins the other devices later. policy: of a device that
    trains. engine, rollout: of a device that generates, with the memory of its weights. text_ids: number of
    ids that may be sampled."""
    model_shape = shape_of(model)
    assert model_shape is not None, "plans are made of known shapes"
    shape = model_shape.shown(spec.model)
    update = policy.slices() if policy is not None else {}

    def make_setup(members: Members) -> ReshardSetup:
        return _plan(spec, shape, members, policy, update, rollout, backend)

    return Reshard(
        make=make_setup,
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
    policy: LocalPolicy | None,
    update: Mapping[str, Tensor],
    rollout: RolloutBuffers | None,
    backend: Backend,
) -> ReshardSetup:
    """Plan a reshard among members. Raises WeightsError where the engines hold other slices than the plan
    has."""
    plan = plan_of_job(_with_current_devices(spec, members, trains=policy is not None), shape)
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
    return ReshardSetup(
        plan=plan,
        members=members,
        resharder=resharder,
        strategy=strategy,
        checks=checks,
        merge=adapters,
    )


def _elements(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: tensor.numel() for name, tensor in tensors.items()}


def _with_current_devices(spec: ResolvedSpec, members: Members, *, trains: bool) -> ResolvedSpec:
    """Return the spec with the current number of devices that train and of devices that generate. trains:
    whether this one does."""
    if spec.placement.mode == "colocated":
        return spec
    training = members.share(f"{trains}").count(f"{True}")
    update, rollout = spec.update.parallelism, spec.rollout.parallelism
    replica = update_mesh(update).size // update.data
    parallelism = rollout.model_copy(
        update={"data": (members.size - training) // rollout.replica_devices}
    )
    changes = {"rollout": spec.rollout.model_copy(update={"parallelism": parallelism})}
    return with_replicas(spec.model_copy(update=changes), training // replica)


def _merge(model: PolicyModel, plan: ReshardPlan, device: int) -> AdapterMerge | None:
    """Return the merge of a model with adapters, else None."""
    if not isinstance(model, Decoder) or not adapted_matrices(model):
        return None
    return AdapterMerge(
        model,
        {
            local_slice.tensor.name: local_slice.box
            for local_slice in plan.update.local_boxes(device)
        },
    )
