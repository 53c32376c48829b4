"""The names of a vision-language model's tensors: in files, in a model here, and in transformers' modules.

Called where names leave or enter a model. Here a decoder is called the same with a tower and without.
"""

from collections.abc import Mapping

from rljob_api.model.vision import TOWER, VISION

NESTED = {"model.language_model.": "model.", "model.visual.": TOWER}
"""Prefixes in files, and here; others are the same."""


def name_of(stored: str) -> str:
    """Of a tensor here by its name in files or in transformers' module."""
    for theirs, ours in NESTED.items():
        if stored.startswith(theirs):
            return ours + stored.removeprefix(theirs)
    return stored


def module_name(name: str, config: Mapping[str, object]) -> str:
    """Of a tensor in transformers' module by its name here. config: the model's config.json."""
    for theirs, ours in NESTED.items() if has_tower(config) else ():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def file_name(name: str, config: Mapping[str, object]) -> str:
    """Of a tensor in files by its name here: Qwen2.5-VL's were named before modules were nested, and every
    library still reads them."""
    return name if config.get("model_type") == "qwen2_5_vl" else module_name(name, config)


def has_tower(config: Mapping[str, object]) -> bool:
    """Whether this config.json is of a vision-language model."""
    return config.get("model_type") in VISION
