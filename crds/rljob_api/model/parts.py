"""What each rank of a layout holds of a model, by arithmetic of its degrees.

Called by the runtime's grids, which also know whom a rank works with, and by `resharding`.
"""

from dataclasses import replace

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import Part
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees, rollout_mesh, update_mesh


def update_part(shape: Shape, degrees: UpdateDegrees, rank: int) -> Part:
    """What a rank that trains holds, before ZeRO: neighbours in data × context share a layer's experts, and
    all have the vision tower that they train."""
    place = update_mesh(degrees).coordinates(rank)
    stages, chunks = degrees.pipeline, range(degrees.virtual_pipeline)
    replica = place["data"] * degrees.context + place["context"]
    return Part.of_stages(
        shape,
        tuple(chunk * stages + place["pipeline"] for chunk in chunks),
        stages * degrees.virtual_pipeline,
        tensor=(place["tensor"], degrees.tensor),
        expert=(replica % degrees.expert, degrees.expert),
    )


def rollout_part(shape: Shape, degrees: RolloutDegrees, rank: int) -> Part:
    """What a rank that generates holds: neighbours in data × tensor share a layer's experts, and a trained
    vision tower is where layers read it."""
    place = rollout_mesh(degrees).coordinates(rank)
    sharer = place["data"] * degrees.tensor + place["tensor"]
    part = Part.of_stages(
        shape,
        (place["pipeline"],),
        degrees.pipeline,
        tensor=(place["tensor"], degrees.tensor),
        expert=(sharer % degrees.expert, degrees.expert),
    )
    return replace(part, sees=part.first or part.layers[0] < shape.tower_outputs - 1)
