"""The update engine's interface to the states, and its inputs: samples in, an optimizer step out.

Built-in engines and those of packages implement the same protocol; `update_table` creates the one that a job
names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from pydantic import JsonValue
from torch import Tensor

from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.accumulation import LossFn
from rljob_runtime.update.state_places import StateRange
from rljob_runtime.update.update_ranks import UpdateRanks


class OptimizerStep(Protocol):
    """An optimizer step in progress on one rank."""

    def add(self, batch: SampleBatch, *, teaches: bool = True) -> None:
        """Add a micro-batch; one that does not teach is known to have no gradient."""
        ...

    def discard(self) -> None:
        """Discard the gradient; the weights have not changed. May be called twice."""
        ...


Step = TypeVar("Step", bound=OptimizerStep)


class UpdateEngine(Protocol[Step]):
    """Trains the policy. All ranks that train call the same methods in the same order."""

    @property
    def step(self) -> int:
        """Return the number of optimizer steps so far, including skipped ones."""
        ...

    @property
    def version(self) -> int:
        """Return the number of optimizer steps that changed the weights."""
        ...

    def logprobs(self, batch: SampleBatch) -> Tensor:
        """Return log-probs of the batch's response tokens [T], float, without gradient.

        They are under softmax(logits / spec.rollout.temperature).
        """
        ...

    def begin(self, loss: LossFn) -> Step:
        """Start an optimizer step. loss: called once per micro-batch with its log-probs [T]."""
        ...

    def finish(
        self, begun: Step, *, groups_with_signal: int, min_groups_with_signal: int = 0
    ) -> dict[str, float]:
        """Apply the step to all added micro-batches; returns metrics over the global batch.

        These are at least `loss`, `gradient_norm`, `learning_rate` and `skipped`. The weights do not change,
        and `skipped` is 1, if all ranks together have fewer groups with a signal or no response token. The
        same holds, with a gradient_norm of NaN, if a loss or gradient on any rank is not finite.
        """
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights by Hugging Face name, valid until the next step."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a resumed run needs in addition to the weights: flat tensors by name, not copies."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`; the weights have already been loaded into the policy."""
        ...


@runtime_checkable
class MovableState(Protocol):
    """An engine whose state can be loaded by ranks of another layout."""

    def state_ranges(self) -> dict[str, StateRange]:
        """Return which items the tensors of `state_dict` belong to; empty if no other layout can load
        them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSetup:
    """The inputs that an update engine is created from.

    model: Hugging Face directory that `policy` was read from. policy: the model to train. Rollout and
    checkpoints read the policy's tensors: an engine that computes on other tensors copies them back before
    `finish` ends. purposes: which ranks sum the gradient of each parameter, if ranks share the model.
    total_steps: optimizer steps of the full run. ranks: those that train. swap: moves what
    spec.update.offload names to the host; None for nothing.
    """

    spec: ResolvedSpec
    model: Path
    policy: PolicyModel
    total_steps: int
    ranks: UpdateRanks
    ledger: MemoryLedger
    purposes: Mapping[str, Purpose] | None = None
    swap: HostSwap | None = None

    @property
    def params(self) -> Mapping[str, JsonValue]:
        """Return spec.update.params, empty if unset."""
        return self.spec.update.params or {}
