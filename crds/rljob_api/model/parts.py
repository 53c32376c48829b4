"""Compute the shard of a model that each rank of a layout holds, from its degrees.

Called by the runtime's grids, which also compute communication groups, and by `resharding`.
"""

from dataclasses import replace

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import RankShard
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees, rollout_mesh, update_mesh


def update_rank_shard(shape: Shape, degrees: UpdateDegrees, rank: int) -> RankShard:
    """Return the shard of a rank that trains, before ZeRO. Neighbours in data × context share a layer's
    experts, and all ranks have the vision tower that they train."""
    coordinates = update_mesh(degrees).coordinates(rank)
    stages, chunks = degrees.pipeline, range(degrees.virtual_pipeline)
    replica = coordinates["data"] * degrees.context + coordinates["context"]
    return RankShard.of_stages(
        shape,
        tuple(chunk * stages + coordinates["pipeline"] for chunk in chunks),
        stages * degrees.virtual_pipeline,
        tensor=(coordinates["tensor"], degrees.tensor),
        expert=(replica % degrees.expert, degrees.expert),
    )


def rollout_rank_shard(shape: Shape, degrees: RolloutDegrees, rank: int) -> RankShard:
    """Return the shard of a rank that generates. Neighbours in data × tensor share a layer's experts. A
    trained vision tower is held by the ranks whose layers read its outputs."""
    coordinates = rollout_mesh(degrees).coordinates(rank)
    sharer = coordinates["data"] * degrees.tensor + coordinates["tensor"]
    shard = RankShard.of_stages(
        shape,
        (coordinates["pipeline"],),
        degrees.pipeline,
        tensor=(coordinates["tensor"], degrees.tensor),
        expert=(sharer % degrees.expert, degrees.expert),
    )
    return replace(shard, has_tower=shard.first or shard.layers[0] < shape.tower_outputs - 1)
