"""Advantages and losses, one file an algorithm: `dr-grpo` of the contract's names is `dr_grpo.py`.

Algorithms of installed packages have a dot in their name and come by entry point.
"""

from importlib import import_module
from typing import cast

from rljob_api.spec.algorithms import NAMES
from rljob_runtime.algorithms.algorithm import Algorithm, CriticAlgorithm, LossOutput, Totals
from rljob_runtime.extensions import algorithm_use, load_module

ALGORITHMS = {name: import_module(f"{__name__}.{name.replace('-', '_')}") for name in NAMES}


def algorithm_of(name: str) -> Algorithm:
    """The algorithm. Raises ConfigError where a package's is not installed or lacks something."""
    return cast(Algorithm, _module_of(name, Algorithm))


def critic_of(name: str) -> CriticAlgorithm:
    """What its critic is taught by; otherwise as `algorithm_of`."""
    return cast(CriticAlgorithm, _module_of(name, CriticAlgorithm))


def _module_of(name: str, protocol: type) -> object:
    return ALGORITHMS.get(name) or load_module(algorithm_use(name), protocol)


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CriticAlgorithm",
    "LossOutput",
    "Totals",
    "algorithm_of",
    "critic_of",
]
