"""Arithmetic of devices: who owns which, meshes of ranks, pods.

Called by the rules, `plan`, the runtime's placement and the operator. Pure; assumes that the values
are in bounds, not that they fit together.
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
    """Devices of each role. Colocated, both roles own all devices."""

    update: int
    rollout: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Ranks of one role on named axes. axes: (name, degree), the slowest first."""

    axes: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(degree for _, degree in self.axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Place of a rank on each axis. rank: 0 ≤ rank < size."""
        place: dict[str, int] = {}
        for name, degree in reversed(self.axes):
            rank, place[name] = divmod(rank, degree)
        return place

    def group(self, axes: str | tuple[str, ...], rank: int) -> list[int]:
        """The ranks that differ from `rank` on these axes alone, itself among them, ascending."""
        names = (axes,) if isinstance(axes, str) else axes
        unknown = set(names) - {name for name, _ in self.axes}
        assert not unknown, f"{unknown} are no axes of {self.axes}"
        place = self.coordinates(rank)
        ranks, stride = [rank], 1
        for name, degree in reversed(self.axes):
            if name in names:
                first = place[name] * stride
                ranks = [other - first + stride * i for i in range(degree) for other in ranks]
            stride *= degree
        return ranks

    def groups(self, axes: str | tuple[str, ...]) -> list[list[int]]:
        """All groups on these axes, by their first rank; every rank is in one."""
        found: dict[int, list[int]] = {}
        for rank in range(self.size):
            group = self.group(axes, rank)
            found.setdefault(group[0], group)
        return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Pods of the job on a cluster. spare: workers and warehouses beside those that it begins with, so many
    of each."""

    head: int
    worker: int
    warehouse: int
    spare: int = 0


def num_nodes(placement: Placement, accelerator: Accelerator) -> int:
    """Nodes of the job: those that the roles' devices fill where both are counted."""
    update, rollout = placement.update_devices, placement.rollout_devices
    if placement.mode == "separated" and update is not None and rollout is not None:
        return -(-(update + rollout) // accelerator.devices_per_node)
    return accelerator.nodes or 1


def lasting_nodes(placement: Placement, accelerator: Accelerator) -> int:
    """Nodes that the job keeps whatever number of devices generates: those with a device that trains."""
    if placement.mode == "colocated":
        return num_nodes(placement, accelerator)
    return max(1, -(-roles(placement, accelerator).update // accelerator.devices_per_node))


def total_devices(placement: Placement, accelerator: Accelerator) -> int:
    """Devices of the job's nodes; the last node of a `separated` job may have idle ones."""
    return num_nodes(placement, accelerator) * accelerator.devices_per_node


def used_devices(placement: Placement, accelerator: Accelerator) -> int:
    """Devices that have a role."""
    own = roles(placement, accelerator)
    return own.update if placement.mode == "colocated" else own.update + own.rollout


def roles(placement: Placement, accelerator: Accelerator) -> Roles:
    """Devices of each role; a role that `separated` leaves open gets the rest, maybe 0 or less."""
    total = total_devices(placement, accelerator)
    if placement.mode == "colocated":
        return Roles(update=total, rollout=total)
    update, rollout = placement.update_devices, placement.rollout_devices
    if update is None:
        update = total - (rollout if rollout is not None else total // 2)
    return Roles(update=update, rollout=rollout if rollout is not None else total - update)


def updates_in_flight(spec: RLJobSpec) -> bool:
    """Whether devices that generate go on while new weights come to them. Other engines than `torch` keep
    theirs in forms and processes of their own."""
    ahead = spec.flow.mode == "async" and spec.placement.mode == "separated"
    return ahead and spec.rollout.engine == "torch"


def update_replicas(parallelism: UpdateParallelism, devices: int) -> int | None:
    """The data degree of the update layout; None where the other degrees do not divide `devices`."""
    return parallelism.data or _left(
        devices, parallelism.tensor * parallelism.pipeline * parallelism.context
    )


def rollout_replicas(parallelism: RolloutParallelism, devices: int) -> int | None:
    """The data degree of the rollout layout; None where the others do not divide `devices`."""
    return parallelism.data or _left(devices, parallelism.tensor * parallelism.pipeline)


def expert_degrees(*, data: int, tensor: int) -> list[int]:
    """Expert degrees that rollout ranks can have: experts are shared by some tensor ranks of each model, or
    by all of several models."""
    ranks = data * tensor
    return [
        expert
        for expert in range(1, ranks + 1)
        if ranks % expert == 0 and (tensor % expert == 0 or expert % tensor == 0)
    ]


def update_mesh(degrees: UpdateDegrees) -> Mesh:
    """Ranks that train, as Megatron orders them."""
    return Mesh(
        axes=(
            ("pipeline", degrees.pipeline),
            ("data", degrees.data),
            ("context", degrees.context),
            ("tensor", degrees.tensor),
        )
    )


def rollout_mesh(degrees: RolloutDegrees) -> Mesh:
    """Ranks that generate, as vLLM orders them."""
    return Mesh(
        axes=(
            ("data", degrees.data),
            ("pipeline", degrees.pipeline),
            ("tensor", degrees.tensor),
        )
    )


def num_warehouses(spec: RLJobSpec) -> int:
    """Warehouses of the dock (the paper's S)."""
    return spec.dock.warehouses or lasting_nodes(spec.placement, spec.accelerator)


def pods(spec: RLJobSpec) -> Pods:
    """One head without devices, one worker a node, at most one pod of warehouses on each that lasts; a spare
    node has one of each, too."""
    return Pods(
        head=1,
        worker=num_nodes(spec.placement, spec.accelerator),
        warehouse=min(num_warehouses(spec), lasting_nodes(spec.placement, spec.accelerator)),
        spare=spec.accelerator.spare_nodes,
    )


def can_reshard(spec: RLJobSpec) -> bool:
    """Whether a plan can move weights from the engine that trains to the one that generates."""
    engines = not is_extension(spec.update.engine) and not is_extension(spec.rollout.engine)
    whole = spec.rollout.quantization == "none"
    return whole and engines and not spec.has_pairs  # pairs of the data need no rollout


def keeps_engine(spec: RLJobSpec) -> bool:
    """Whether a device goes on with its rollout engine when the devices around it meet anew. A process can
    make vLLM once; where devices share a model, it is bound to their group."""
    return spec.rollout.engine == "vllm" and not spec.rollout.parallelism.shared


def open_prompts(spec: RLJobSpec) -> int:
    """Prompts that a partial rollout carries from a step to the next; 0 without one."""
    partial = spec.flow.partial_rollout
    return (partial.extra_prompts or spec.batch.global_batch_size) if partial else 0


def most_stale(spec: RLJobSpec) -> int:
    """Versions that a sample's first token may be behind the weights that it trains."""
    return max(spec.flow.most_stale, int(spec.algorithm.params.refills))


def most_ahead(spec: RLJobSpec) -> int:
    """Versions that the weights may be behind when generation begins a step's batch. Groups that dynamic
    sampling leaves over for the next step are one older there, where the bound has room for it."""
    ahead = spec.flow.most_ahead
    return ahead - int(spec.algorithm.params.refills and ahead > 1)


def off_policy(spec: RLJobSpec) -> bool:
    """Whether older weights than those that it trains may have drawn a sample."""
    return spec.flow.off_policy or spec.algorithm.params.refills


def _left(devices: int, used: int) -> int | None:
    return devices // used if devices >= used and devices % used == 0 else None
