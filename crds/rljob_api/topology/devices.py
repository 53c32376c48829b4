"""Compute devices of each role, meshes of ranks, and pods.

Called by the rules, `plan`, the runtime's placement and the operator. Pure; assumes that the values are in
bounds, not that they fit together.
"""

import math
from dataclasses import dataclass

from rljob_api.spec.engines import Placement, RolloutParallelism, UpdateParallelism
from rljob_api.spec.extensions import is_extension
from rljob_api.spec.infrastructure import Accelerator
from rljob_api.spec.rljob import RLJobSpec


class UpdateDegrees(UpdateParallelism):
    """Degrees of the update layout, all of them known."""

    data: int


class RolloutDegrees(RolloutParallelism):
    """Degrees of the rollout layout, all of them known."""

    data: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Devices of each role. When colocated, both roles own all devices."""

    update: int
    rollout: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Ranks of one role on named axes. axes: (name, degree), the slowest first."""

    axes: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return math.prod(degree for _, degree in self.axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the index of a rank on each axis. rank: 0 ≤ rank < size."""
        indices: dict[str, int] = {}
        for name, degree in reversed(self.axes):
            rank, indices[name] = divmod(rank, degree)
        return indices

    def group(self, axes: str | tuple[str, ...], rank: int) -> list[int]:
        """Return the ranks that differ from `rank` on these axes only, including `rank`, ascending."""
        names = (axes,) if isinstance(axes, str) else axes
        unknown = set(names) - {name for name, _ in self.axes}
        assert not unknown, f"{unknown} are no axes of {self.axes}"
        indices = self.coordinates(rank)
        ranks, stride = [rank], 1
        for name, degree in reversed(self.axes):
            if name in names:
                first = indices[name] * stride
                ranks = [other - first + stride * i for i in range(degree) for other in ranks]
            stride *= degree
        return ranks

    def groups(self, axes: str | tuple[str, ...]) -> list[list[int]]:
        """Return all groups on these axes, ordered by their first rank. Every rank is in one group."""
        groups_by_first: dict[int, list[int]] = {}
        for rank in range(self.size):
            group = self.group(axes, rank)
            groups_by_first.setdefault(group[0], group)
        return list(groups_by_first.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Pods of the job on a cluster. spare: workers, and as many warehouses, beyond those that the job starts
    with."""

    head: int
    worker: int
    warehouse: int
    spare: int = 0


def num_nodes(placement: Placement, accelerator: Accelerator) -> int:
    """Return the nodes of the job: if both roles' devices are counted, the nodes that they fill."""
    update, rollout = placement.update_devices, placement.rollout_devices
    if placement.mode == "separated" and update is not None and rollout is not None:
        return -(-(update + rollout) // accelerator.devices_per_node)
    return accelerator.nodes or 1


def lasting_nodes(placement: Placement, accelerator: Accelerator) -> int:
    """Return the nodes that the job keeps whatever number of devices generates: those with a device that
    trains."""
    if placement.mode == "colocated":
        return num_nodes(placement, accelerator)
    return max(1, -(-roles(placement, accelerator).update // accelerator.devices_per_node))


def total_devices(placement: Placement, accelerator: Accelerator) -> int:
    """Return the devices of the job's nodes. The last node of a `separated` job may have idle ones."""
    return num_nodes(placement, accelerator) * accelerator.devices_per_node


def used_devices(placement: Placement, accelerator: Accelerator) -> int:
    """Return the number of devices that have a role."""
    devices = roles(placement, accelerator)
    return devices.update if placement.mode == "colocated" else devices.update + devices.rollout


def roles(placement: Placement, accelerator: Accelerator) -> Roles:
    """Return the devices of each role. A role that `separated` leaves open gets the remaining ones, maybe 0
    or less."""
    total = total_devices(placement, accelerator)
    if placement.mode == "colocated":
        return Roles(update=total, rollout=total)
    update, rollout = placement.update_devices, placement.rollout_devices
    if update is None:
        update = total - (rollout if rollout is not None else total // 2)
    return Roles(update=update, rollout=rollout if rollout is not None else total - update)


def updates_in_flight(spec: RLJobSpec) -> bool:
    """Return whether devices continue to generate while they receive new weights. Only the engine `torch`
    can: other engines keep the weights in their own formats and processes."""
    ahead = spec.flow.mode == "async" and spec.placement.mode == "separated"
    return ahead and spec.rollout.engine == "torch"


def update_replicas(parallelism: UpdateParallelism, devices: int) -> int | None:
    """Return the data degree of the update layout, or None if the other degrees do not divide `devices`."""
    return parallelism.data or _replicas(
        devices, parallelism.tensor * parallelism.pipeline * parallelism.context
    )


def rollout_replicas(parallelism: RolloutParallelism, devices: int) -> int | None:
    """Return the data degree of the rollout layout, or None if the other degrees do not divide `devices`."""
    return parallelism.data or _replicas(devices, parallelism.tensor * parallelism.pipeline)


def expert_degrees(*, data: int, tensor: int) -> list[int]:
    """Return the expert degrees that rollout ranks can have. Experts are shared by some tensor ranks of each
    model, or by all tensor ranks of several models."""
    ranks = data * tensor
    return [
        expert
        for expert in range(1, ranks + 1)
        if ranks % expert == 0 and (tensor % expert == 0 or expert % tensor == 0)
    ]


def update_mesh(degrees: UpdateDegrees) -> Mesh:
    """Return the mesh of ranks that train, in Megatron's order."""
    return Mesh(
        axes=(
            ("pipeline", degrees.pipeline),
            ("data", degrees.data),
            ("context", degrees.context),
            ("tensor", degrees.tensor),
        )
    )


def rollout_mesh(degrees: RolloutDegrees) -> Mesh:
    """Return the mesh of ranks that generate, in vLLM's order."""
    return Mesh(
        axes=(
            ("data", degrees.data),
            ("pipeline", degrees.pipeline),
            ("tensor", degrees.tensor),
        )
    )


def num_warehouses(spec: RLJobSpec) -> int:
    """Return the number of warehouses of the dock (the paper's S)."""
    return spec.dock.warehouses or lasting_nodes(spec.placement, spec.accelerator)


def pods(spec: RLJobSpec) -> Pods:
    """Return one head without devices, one worker per node, and at most one warehouse pod per lasting node. A
    spare node adds one worker and one warehouse."""
    return Pods(
        head=1,
        worker=num_nodes(spec.placement, spec.accelerator),
        warehouse=min(num_warehouses(spec), lasting_nodes(spec.placement, spec.accelerator)),
        spare=spec.accelerator.spare_nodes,
    )


def can_reshard(spec: RLJobSpec) -> bool:
    """Return whether a plan can move weights from the training engine to the generating engine."""
    engines = not is_extension(spec.update.engine) and not is_extension(spec.rollout.engine)
    is_unquantized = spec.rollout.quantization == "none"
    return is_unquantized and engines and not spec.has_pairs  # pairs of the data need no rollout


def keeps_engine(spec: RLJobSpec) -> bool:
    """Return whether a device keeps its rollout engine when its process groups are formed again. A process
    can create vLLM only once; if devices share a model, vLLM is bound to their group."""
    return spec.rollout.engine == "vllm" and not spec.rollout.parallelism.shared


def open_prompts(spec: RLJobSpec) -> int:
    """Return the prompts that a partial rollout carries from one step to the next; 0 without one."""
    partial = spec.flow.partial_rollout
    return (partial.extra_prompts or spec.batch.global_batch_size) if partial else 0


def most_stale(spec: RLJobSpec) -> int:
    """Return how many versions a sample's first token may be behind the weights that train on it."""
    return max(spec.flow.most_stale, int(spec.algorithm.params.refills))


def most_ahead(spec: RLJobSpec) -> int:
    """Return how many versions the weights may be behind when generation begins a step's batch. Groups that
    dynamic sampling leaves over for the next step are one version older there, so the bound is one less if it
    is above 1."""
    ahead = spec.flow.most_ahead
    return ahead - int(spec.algorithm.params.refills and ahead > 1)


def off_policy(spec: RLJobSpec) -> bool:
    """Return whether weights older than those being trained may have drawn a sample."""
    return spec.flow.off_policy or spec.algorithm.params.refills


def _replicas(devices: int, per_replica: int) -> int | None:
    return devices // per_replica if devices >= per_replica and devices % per_replica == 0 else None
