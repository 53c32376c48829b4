"""Names of a vision-language model's tensors: in files, in our models, and in transformers' modules.

Code that reads or writes names of a model's tensors calls this. Our decoder's names are the same with and
without a tower.
"""

from collections.abc import Mapping

from rljob_api.model.vision import TOWER, VISION

NESTED = {"model.language_model.": "model.", "model.visual.": TOWER}
"""Prefixes in files, and in our models; other names are equal."""


def name_of(stored: str) -> str:
    """Return a tensor's name in our models from its name in files or in transformers' module."""
    for file_prefix, prefix in NESTED.items():
        if stored.startswith(file_prefix):
            return prefix + stored.removeprefix(file_prefix)
    return stored


def module_name(name: str, config: Mapping[str, object]) -> str:
    """Return a tensor's name in transformers' module from its name in our models. config: the model's
    config.json."""
    for file_prefix, prefix in NESTED.items() if has_tower(config) else ():
        if name.startswith(prefix):
            return file_prefix + name.removeprefix(prefix)
    return name


def file_name(name: str, config: Mapping[str, object]) -> str:
    """Return a tensor's name in files from its name in our models.

    Qwen2.5-VL's names predate nested modules, and every library still reads them.
    """
    return name if config.get("model_type") == "qwen2_5_vl" else module_name(name, config)


def has_tower(config: Mapping[str, object]) -> bool:
    """Return whether this config.json is of a vision-language model."""
    return config.get("model_type") in VISION
