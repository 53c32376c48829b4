"""Read what the families with a vision tower share: three-axis positions and the `Vision` of a decoder.

The modules of these families call this.
"""

from dataclasses import replace

from rljob_runtime.models.architecture import Architecture, Vision
from rljob_runtime.models.config import Config
from rljob_runtime.models.rope import read_sections

PICTURE_TOKEN = 151655  # if config.json does not name one


def with_axes(
    architecture: Architecture, config: Config, *, default: list[int], interleaved: bool = False
) -> Architecture:
    """Return the architecture with positions of three axes: time, height and width.

    default: rotated pairs of a head per axis, if config.json does not give them.
    """
    sections = read_sections(config, default=default, width=architecture.rotated_dim)
    rope = replace(architecture.rope, sections=sections, interleaved_sections=interleaved)
    return replace(architecture, rope=rope)


def read_vision(config: Config) -> Vision:
    """Return the `Vision` of a config.json. Raises ConfigError for invalid sizes."""
    tower = Config(config.name, config.mapping("vision_config"))
    return Vision(
        picture_token=config.integer("image_token_id", PICTURE_TOKEN),
        merged=tower.integer("spatial_merge_size", 2),
    )
