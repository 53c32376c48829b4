"""What states ask of an update engine, and what one is made of: samples in, an optimizer step out.

Built-in engines and those of packages meet the same protocol; `engine_table` makes the one that a job names.
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
    """An optimizer step in the making, on one rank."""

    def add(self, batch: SampleBatch, *, teaches: bool = True) -> None:
        """Take a micro-batch in; one that does not teach is known to have no gradient."""
        ...

    def discard(self) -> None:
        """Throw the gradient away; the weights have not changed. May be called twice."""
        ...


Step = TypeVar("Step", bound=OptimizerStep)


class UpdateEngine(Protocol[Step]):
    """Trains the policy. All ranks that train call the same methods in the same order."""

    @property
    def step(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        ...

    @property
    def version(self) -> int:
        """Optimizer steps that changed the weights."""
        ...

    def logprobs(self, batch: SampleBatch) -> Tensor:
        """Log-probs of the batch's response tokens [T], float, without gradient, under
        softmax(logits / spec.rollout.temperature)."""
        ...

    def begin(self, loss: LossFn) -> Step:
        """Start an optimizer step. loss: called once a micro-batch with its log-probs [T]."""
        ...

    def finish(
        self, begun: Step, *, groups_with_signal: int, min_groups_with_signal: int = 0
    ) -> dict[str, float]:
        """Take the step on what was added; returns metrics over the global batch.

        At least `loss`, `gradient_norm`, `learning_rate` and `skipped`. The weights stay as they are,
        and `skipped` is 1, when all ranks together have fewer groups with a signal or no response token;
        and, with a gradient_norm of NaN, when a loss or gradient of one of them is not finite.
        """
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by Hugging Face name, valid until the next step."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs beside the weights: flat tensors by name. Not copies."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`; the weights have been loaded into the policy before."""
        ...


@runtime_checkable
class MovableState(Protocol):
    """An engine whose state ranks of another layout can take."""

    def state_ranges(self) -> dict[str, StateRange]:
        """What the tensors of `state_dict` are of; empty where no other layout can take them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSetup:
    """What an update engine is made of.

    model: Hugging Face directory that `policy` was read from. policy: the model to
    train. Rollout and checkpoints read the policy's tensors: an engine that computes on tensors of
    its own copies them back before `finish` ends. purposes: who adds up the gradient of each parameter,
    where ranks share the model. total_steps: optimizer steps of the whole run. ranks: those that train.
    swap: moves what spec.update.offload names to the host; None for nothing.
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
        """spec.update.params."""
        return self.spec.update.params or {}
