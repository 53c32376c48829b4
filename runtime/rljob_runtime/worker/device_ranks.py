"""The process groups of both layouts of a device, created once when it starts.

The device worker calls this. Colocated devices are one world of processes. Separated devices are several: the
devices that train, and each set of rollout devices that share a model, so that sets can be added and removed.
"""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from rljob_api.spec.engines import UpdateParallelism
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.meetings import assemble, join_rendezvous
from rljob_runtime.devices.world_connections import CONNECTIONS
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.rollout.rollout_grid import RolloutGrid
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.weights.held_policy import shape_of
from rljob_runtime.worker.device_role import DeviceRole

GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRanks:
    """A device's process groups.

    critic, reward_model, teacher: those of their layouts on the update devices, if there are any. rollout:
    None if the device holds full models or does not generate.
    """

    update: UpdateRanks
    critic: UpdateRanks = field(default_factory=UpdateRanks)
    reward_model: UpdateRanks = field(default_factory=UpdateRanks)
    teacher: UpdateRanks = field(default_factory=UpdateRanks)
    rollout: RolloutGroups | None = None


def join(
    backend: Backend,
    role: DeviceRole,
    meeting: str | None,
    *,
    spec: ResolvedSpec,
    models: Mapping[str, Path],
    meet_seconds: float | None = None,
) -> DeviceRanks:
    """Join the other devices of the role's world, if there are any.

    meeting: address of a `Meeting`. models: directories by name. meet_seconds: deadline for the others to
    arrive, if it is shorter. A collective waits a little longer than the deadline for a batch's rows, so that
    the rank which waited for them reports the error. Raises ConfigError for invalid degrees, and RuntimeError
    if other devices do not arrive.
    """
    if role.world_size == 1:
        return DeviceRanks(update=UpdateRanks())
    assert meeting is not None, f"device {role.rank} has nowhere to meet the others"
    seconds = spec.flow.stage_timeout_seconds + GRACE_SECONDS
    rendezvous = join_rendezvous(meeting, seconds=meet_seconds or seconds)
    assemble(rendezvous.store, role.world_rank, role.world_size, seconds=meet_seconds or seconds)
    CONNECTIONS.begin(rendezvous, role.world_rank, role.world_size)
    with CONNECTIONS.tracking_groups():
        dist.init_process_group(
            backend.collectives,
            store=rendezvous.store,
            rank=role.world_rank,
            world_size=role.world_size,
            timeout=timedelta(seconds=seconds),
            pg_options=backend.group_options(),
        )
        ranks = critic = reward_model = teacher = UpdateRanks()
        degrees, scorer = spec.rollout.parallelism, spec.reward_model
        if role.update_rank is not None:
            trains = spec.model.vision == "trained"
            degrees_of = spec.update.parallelism
            ranks = _update_ranks(degrees_of, models["policy"], seconds, tower=trains)
            if spec.critic is not None:
                critic = _update_ranks(spec.critic.parallelism, models["critic"], seconds)
            if scorer is not None:
                reward_model = _update_ranks(scorer.parallelism, models["reward-model"], seconds)
            if spec.teacher is not None:
                teacher = _update_ranks(spec.teacher.parallelism, models["teacher"], seconds)
        groups = _rollout_groups(degrees, seconds) if role.generates and degrees.shared else None
    return DeviceRanks(
        update=ranks, critic=critic, reward_model=reward_model, teacher=teacher, rollout=groups
    )


def leave() -> None:
    """Leave the world, some of whose members may be gone, so that this process can `join` another one.

    Ranks that still wait for this one in a collective get an error.
    """
    CONNECTIONS.cut()
    gc.collect()  # frees objects that hold a group before the group ends
    gc.collect()  # frees weights held by hooks of a graph that the first collection freed
    if dist.is_initialized():
        dist.destroy_process_group()


def _update_ranks(
    degrees: UpdateParallelism, model: Path, seconds: float, *, tower: bool = False
) -> UpdateRanks:
    """Create the update groups. tower: whether they train a vision tower."""
    if not degrees.shared:
        return UpdateRanks(everyone=dist.group.WORLD)
    shape = shape_of(model)
    update_degrees = UpdateDegrees.model_validate(dict(degrees))
    grid = RankGrid(update_degrees, kv_heads=shape.kv_heads if shape else None, tower=tower)
    groups = ProcessGroups(grid, timeout_seconds=seconds)
    return UpdateRanks.of(groups, dist.group.WORLD)


def _rollout_groups(degrees: RolloutDegrees, seconds: float) -> RolloutGroups:
    """Create the groups of the world's rollout ranks, which may be a subset of the job's."""
    replicas = dist.get_world_size() // degrees.replica_devices
    grid = RolloutGrid(degrees.model_copy(update={"data": replicas}))
    return RolloutGroups(grid, timeout_seconds=seconds)
