"""Advantages and losses, one file an algorithm; the table maps the job's `algorithm.name` to it."""

from rljob_runtime.algorithms import grpo
from rljob_runtime.algorithms.base import Algorithm, LossOutput, Totals

ALGORITHMS: dict[str, Algorithm] = {"grpo": grpo}

__all__ = ["ALGORITHMS", "Algorithm", "LossOutput", "Totals"]
