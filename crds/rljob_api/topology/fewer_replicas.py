"""Train with fewer data-parallel replicas than a job has: the fewest possible, and the prompts of each
replica.

Called by the rules, the planner, and the runtime's driver and devices. Pure.
"""

from pydantic import Field

from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.section import Section
from rljob_api.topology.devices import update_mesh
from rljob_api.topology.resolved import ResolvedBatch, ResolvedSpec


class ReplicasReport(Section):
    """What a driver reports of the replicas that train, with `elastic.update`; `replicas` in the document
    that it serves."""

    step: int
    """Steps that were done when it became so."""

    live: int
    """Replicas that train."""

    wanted: int
    """Replicas of the job."""

    left_out: list[int] = Field(default_factory=list)
    """Numbers of the devices that are missing."""

    hosts: list[str] = Field(default_factory=list)
    """Names of the hosts, on a cluster of the pods, that these were on."""


def fewest_replicas(spec: RLJobSpec) -> int | None:
    """Return the fewest replicas that training continues with, or None if it needs all of them."""
    return spec.elastic.update.min_replicas if spec.elastic else None


def with_replicas(spec: ResolvedSpec, replicas: int) -> ResolvedSpec:
    """Return the spec for training with this many replicas. Its micro-batches keep their size."""
    degrees = spec.update.parallelism.model_copy(update={"data": replicas})
    changed = {
        "update": spec.update.model_copy(update={"parallelism": degrees}),
        "placement": spec.placement.model_copy(
            update={"update_devices": update_mesh(degrees).size}
        ),
    }
    return spec.model_copy(update=changed)


def share_of_mini_batches(
    share: tuple[int, int], batch: ResolvedBatch, *, balanced: bool
) -> list[int]:
    """Return the number of prompts that a replica trains on in each mini-batch of a step. All replicas
    together train on all of them.

    share: (number of the replica, replicas); there are no more replicas than prompts in a mini-batch, so each
    replica has at least one prompt. balanced: each mini-batch is shared out separately (`update.balance`);
    otherwise a replica has every `replicas`-th prompt of the step.
    """
    replica, replicas = share
    size = batch.mini_batch_size
    firsts = range(0, batch.global_batch_size, size)
    if balanced:
        return [size // replicas + (replica < size % replicas) for _ in firsts]
    return [
        len(range(replica, first + size, replicas)) - len(range(replica, first, replicas))
        for first in firsts
    ]
