"""The algorithms of the contract: one file each, its parameters and the columns that it needs.

The runtime's part of an algorithm (advantages, loss) is the file of the same name in
`rljob_runtime.algorithms`.
"""

from rljob_api.algorithms.grpo import GRPO

ALGORITHMS = {"grpo": GRPO}

__all__ = ["ALGORITHMS", "GRPO"]
