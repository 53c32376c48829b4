"""What the families with a vision tower share: positions of three axes, and what a decoder knows of it.

Called by the modules of these families.
"""

from dataclasses import replace

from rljob_runtime.models.architecture import Architecture, Vision
from rljob_runtime.models.config import Config
from rljob_runtime.models.rope import read_sections

PICTURE_TOKEN = 151655  # where config.json does not name one


def with_axes(
    architecture: Architecture, config: Config, *, default: list[int], interleaved: bool = False
) -> Architecture:
    """The same, positions of which have the axes time, height and width. default: pairs of a head by axis,
    where config.json does not say."""
    sections = read_sections(config, default=default, width=architecture.rotated_dim)
    rope = replace(architecture.rope, sections=sections, interleaved_sections=interleaved)
    return replace(architecture, rope=rope)


def read_vision(config: Config) -> Vision:
    """What the decoder knows of its tower. Raises ConfigError."""
    tower = Config(config.name, config.mapping("vision_config"))
    return Vision(
        picture_token=config.integer("image_token_id", PICTURE_TOKEN),
        merged=tower.integer("spatial_merge_size", 2),
    )
