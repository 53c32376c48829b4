"""Implement advantages and losses, one file per algorithm: the spec's name `dr-grpo` maps to
`dr_grpo.py`.

Algorithms of installed packages have a dot in their name and are loaded by entry point.
"""

from importlib import import_module
from typing import cast

from rljob_api.spec.algorithms import NAMES
from rljob_runtime.algorithms.algorithm import Algorithm, CriticAlgorithm, LossOutput, Totals
from rljob_runtime.extensions import algorithm_use, load_module

ALGORITHMS = {name: import_module(f"{__name__}.{name.replace('-', '_')}") for name in NAMES}


def algorithm_of(name: str) -> Algorithm:
    """Return the algorithm's module. Raises ConfigError if a package's algorithm is not installed or
    is incomplete."""
    return cast(Algorithm, _module_of(name, Algorithm))


def critic_of(name: str) -> CriticAlgorithm:
    """Return the module that trains the algorithm's critic. Raises ConfigError like `algorithm_of`."""
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
