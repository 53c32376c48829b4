"""How a run continues with fewer devices than it requests."""

from pydantic import Field

from rljob_api.spec.section import Section


class ElasticUpdate(Section):
    """Training with fewer data-parallel replicas while devices are missing."""

    min_replicas: int = Field(ge=1, le=100_000)
    """Fewest replicas that training goes on with (docs/recovery.md). Where a device that trains died and has
    no place within 10 s, since its node or pod is gone, the others share out its samples: the same
    globalBatchSize, the same gradients. It is taken in again once its place is there. Needs placement
    `separated`, the engine `torch`, and replicas that hold all of the model: ZeRO 0, no other degree than
    data."""


class Elastic(Section):
    """The fewest devices that the run continues with."""

    update: ElasticUpdate
    """Devices that train."""
