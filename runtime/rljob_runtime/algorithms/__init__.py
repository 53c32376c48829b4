"""Advantages and losses, one file an algorithm; the table maps the job's `algorithm.name` to it.

Algorithms of installed packages have a dot in their name and come by entry point.
"""

from typing import cast

from rljob_runtime.algorithms import (
    cispo,
    dapo,
    distillation,
    dpo,
    dr_grpo,
    grpo,
    gspo,
    ppo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    sapo,
)
from rljob_runtime.algorithms.algorithm import Algorithm, CriticAlgorithm, LossOutput, Totals
from rljob_runtime.extensions import algorithm_use, load_module

ALGORITHMS: dict[str, Algorithm] = {
    "grpo": grpo,
    "dr-grpo": dr_grpo,
    "rloo": rloo,
    "reinforce-plus-plus": reinforce_plus_plus,
    "reinforce-plus-plus-baseline": reinforce_plus_plus_baseline,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "ppo": ppo,
    "dpo": dpo,
    "distillation": distillation,
}
CRITICS: dict[str, CriticAlgorithm] = {"ppo": ppo}


def algorithm_of(name: str) -> Algorithm:
    """The algorithm. Raises ConfigError where a package's is not installed or lacks something."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    return cast(Algorithm, load_module(algorithm_use(name), Algorithm))


def critic_of(name: str) -> CriticAlgorithm:
    """What its critic is taught by; otherwise as `algorithm_of`."""
    if name in CRITICS:
        return CRITICS[name]
    return cast(CriticAlgorithm, load_module(algorithm_use(name), CriticAlgorithm))


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CriticAlgorithm",
    "LossOutput",
    "Totals",
    "algorithm_of",
    "critic_of",
]
