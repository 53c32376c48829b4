"""A job with every default filled in, as the planner, a run and the head's document use it.

The classes narrow those fields of the API that a default always fills; documents stay the same.
"""

from typing import TypeVar

from rljob_api.spec.critic import Critic
from rljob_api.spec.engines import (
    MAX_STALENESS,
    Flow,
    Resharding,
    Rollout,
    Strategy,
    Update,
)
from rljob_api.spec.infrastructure import Dock
from rljob_api.spec.reward_services import RewardModel
from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.spec.section import Section
from rljob_api.spec.teacher import Teacher
from rljob_api.spec.workload import Batch
from rljob_api.topology.devices import (
    Roles,
    RolloutDegrees,
    UpdateDegrees,
    can_reshard,
    num_nodes,
    num_warehouses,
    roles,
    rollout_replicas,
    update_replicas,
)

MEMORY = {"ascend910b": "64Gi", "ascend910c": "64Gi", "ascend950": "128Gi"}
"""Memory of a device, if the job does not set it."""
Kind = TypeVar("Kind", bound=Section)
OtherModel = TypeVar("OtherModel", Critic | None, Teacher | None, RewardModel | None)


class _Update(Update):
    parallelism: UpdateDegrees


class _Rollout(Rollout):
    parallelism: RolloutDegrees


class _Resharding(Resharding):
    strategy: Strategy


class _Dock(Dock):
    warehouses: int


class ResolvedBatch(Batch):
    """Sizes of a step, its mini-batches and its micro-batches."""

    mini_batch_size: int
    micro_batch_size: int

    def passes(self, replicas: int) -> int:
        """Return the micro-batches of a mini-batch on the fullest update replica, at the longest lengths."""
        prompts = -(-self.mini_batch_size // replicas)
        if self.micro_batch_tokens is None:
            return -(-prompts // self.micro_batch_size)
        group = self.max_prompt_length + self.samples_per_prompt * self.max_response_length
        return -(-prompts * group // self.micro_batch_tokens)


class ResolvedSpec(RLJobSpec):
    """A spec in which everything that decides a run is set."""

    batch: ResolvedBatch
    rollout: _Rollout
    update: _Update
    resharding: _Resharding
    dock: _Dock

    @property
    def roles(self) -> Roles:
        """Return the devices of each role."""
        return roles(self.placement, self.accelerator)


class ResolvedJob(RLJob):
    """A job as `resolve` returns it."""

    spec: ResolvedSpec


def resolve(job: RLJob) -> ResolvedJob:
    """Return the job with every default that depends on other values filled in. Resolving it again changes
    nothing.

    job: passed the rules.
    """
    spec = job.spec
    placement, accelerator, batch = spec.placement, spec.accelerator, spec.batch
    devices_by_role = roles(placement, accelerator)
    update = _filled(
        UpdateDegrees,
        spec.update.parallelism,
        data=update_replicas(spec.update.parallelism, devices_by_role.update),
    )
    rollout = _filled(
        RolloutDegrees,
        spec.rollout.parallelism,
        data=rollout_replicas(spec.rollout.parallelism, devices_by_role.rollout),
    )
    devices = dict[str, int]()
    if placement.mode == "separated":
        devices = {
            "update_devices": devices_by_role.update,
            "rollout_devices": devices_by_role.rollout,
        }
    memory = accelerator.memory or MEMORY.get(accelerator.type)
    mini = batch.mini_batch_size or batch.global_batch_size
    full_replica = (
        1 if batch.micro_batch_tokens else mini // update.data
    )  # prompts are packed one by one
    sizes = {"mini_batch_size": mini, "micro_batch_size": batch.micro_batch_size or full_replica}
    planned: Strategy = "allgather-swap" if placement.mode == "colocated" else "allgather"
    strategy = spec.resharding.strategy or (planned if can_reshard(spec) else "stream")
    params = spec.algorithm.params.resolved(max_response_length=batch.max_response_length)
    evaluation = spec.evaluation
    if evaluation is not None and spec.has_pairs:  # both responses
        evaluation = evaluation.model_copy(update={"samples_per_prompt": 2})
    critic = spec.critic or (Critic() if spec.has_critic else None)
    filled = _filled(
        ResolvedSpec,
        spec,
        algorithm=spec.algorithm.model_copy(update={"params": params}),
        flow=_resolved_flow(spec),
        update=_filled(_Update, spec.update, parallelism=update),
        rollout=_filled(_Rollout, spec.rollout, parallelism=rollout),
        critic=_with_data_degree(critic, devices_by_role.update),
        teacher=_with_data_degree(spec.teacher, devices_by_role.update),
        rewards=[
            reward.model_copy(
                update={"model": _with_data_degree(reward.model, devices_by_role.update)}
            )
            for reward in spec.rewards
        ],
        resharding=_filled(_Resharding, spec.resharding, strategy=strategy),
        placement=placement.model_copy(update=devices),
        batch=_filled(ResolvedBatch, batch, **sizes),
        evaluation=evaluation,
        dock=_filled(_Dock, spec.dock, warehouses=num_warehouses(spec)),
        accelerator=accelerator.model_copy(
            update={"nodes": num_nodes(placement, accelerator), "memory": memory}
        ),
    )
    return _filled(ResolvedJob, job, spec=filled)


def _filled(kind: type[Kind], section: Section, **values: object) -> Kind:
    return kind.model_validate({**dict(section), **values})


def _with_data_degree(model: OtherModel, devices: int) -> OtherModel:
    """Return a model with its data degree filled in; it has a separate layout on the devices that train."""
    if model is None:
        return model
    data = update_replicas(model.parallelism, devices)
    degrees = model.parallelism.model_copy(update={"data": data})
    return model.model_copy(update={"parallelism": degrees})


def _resolved_flow(spec: RLJobSpec) -> Flow:
    flow = spec.flow
    if flow.partial_rollout is None or flow.max_staleness is not None:
        return flow
    steps = -(-spec.batch.max_response_length // flow.partial_rollout.budget_tokens)
    steps += flow.most_ahead + int(spec.algorithm.params.refills)  # what is left over waits a step
    return flow.model_copy(update={"max_staleness": min(steps, MAX_STALENESS)})
