"""The critic of an algorithm that has one: its model, degrees and optimizer, with the same fields as
`engines.Update`."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.engines import Dtype, Optimizer, Recompute, Update, UpdateParallelism
from rljob_api.spec.section import Section


class CriticOptimizer(Optimizer):
    """AdamW of the critic and the learning rate's schedule."""

    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Peak learning rate."""


class Critic(Section):
    """The value model, on the devices that train, in a separate layout."""

    path: str | None = Field(default=None, min_length=1, max_length=1024)
    """Hugging Face directory of a classifier with one label (sequence or token), or of a language model,
    which gets a scalar head of zeros; relative to the job's file. Default: the policy's model."""

    parallelism: UpdateParallelism = UpdateParallelism()
    """Degrees of the critic's layout."""

    dtype: Dtype = "float32"
    """Type of the critic's weights and of its computation; see update.dtype."""

    recompute: Recompute = "none"
    """See update.recompute."""

    offload: Literal["none", "optimizer"] = "none"
    """See update.offload."""

    optimizer: CriticOptimizer = CriticOptimizer()
    """AdamW and its schedule."""

    def as_update(self, update: Update) -> Update:
        """Return the critic in the policy's place, so that the rules and plans of training apply to it.
        update: the policy's."""
        names = ("parallelism", "dtype", "recompute", "offload", "optimizer")
        return update.model_copy(
            update={
                "engine": "torch",
                "params": None,
                "lora": None,
                **{name: getattr(self, name) for name in names},
            }
        )
