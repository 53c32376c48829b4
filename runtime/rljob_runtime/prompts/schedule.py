"""Which prompts each step of a run asks: the driver's side, which knows no sample. Pure.

The driver asks a schedule and never looks which one a run has. `Schedule` is the plain one; the others change
what they need. Prompts are known by their positions in the training stream, counted from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from rljob_runtime.prompts.rounds import CandidateRound, Round, Selected
from rljob_runtime.samples.batches import BatchName


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A training batch. round: of a partial rollout, that makes it. positions: of its prompts, where they are
    chosen one by one."""

    batch: BatchName
    round: Round | None = None
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptState:
    """What a checkpoint keeps of a schedule. first_new_prompt: the first position that no step has begun.
    open_prompts: positions that were begun and not trained on. difficulty: what is known of items."""

    first_new_prompt: int = 0
    open_prompts: list[int] = field(default_factory=list)
    difficulty: list[list[int]] = field(default_factory=list)


class Scored(Protocol):
    """Of each sample its prompt's number in the step, and 1 where it passed. failed: samples with an
    error."""

    @property
    def prompts(self) -> Sequence[int]: ...

    @property
    def passes(self) -> Sequence[float]: ...

    @property
    def failed(self) -> int: ...


class Origin(Protocol):
    """Of an update's report, what its samples were made of."""

    @property
    def positions(self) -> Sequence[int]: ...


class Updated(Protocol):
    """Of an update's report. passed: with a difficulty filter, of the samples that it trained on."""

    @property
    def lineage(self) -> Origin | None: ...

    @property
    def passed(self) -> Scored | None: ...


class Schedule:
    """Each step asks the next prompts, in order."""

    __slots__ = ()

    in_rounds: ClassVar[bool] = False
    """Whether rounds of generation fill a batch before anything else of its step."""

    lost_together: ClassVar[bool] = False
    """Whether batches that are on their way are made of what others left over."""

    def sized(self, items: int) -> None:
        """So many training items are there. Once, before the first step."""

    def begin(self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1) -> Asked:
        """A step begins. skipped: steps that the run left behind, whose prompts are not asked again.
        replicas: that generate."""
        return Asked(batch=BatchName(kind="train", step=step, attempt=attempt, skipped=skipped))

    def next_round(self, step: int) -> CandidateRound | None:
        """The next round that the step's batch needs; None: it needs no other."""
        return None

    def selected(self, found: Selected) -> None:
        """What a round gave."""

    def short(self, after: str) -> str:
        """Why the batch is not full after all rounds, or so long; "" where it is."""
        return ""

    def start_over(self, *, trained: bool = False) -> None:
        """The step's batches are lost. trained: its own was trained on all the same."""

    def trained(self, updated: Sequence[Updated]) -> None:
        """The step that began last was trained on, or in a partial rollout the oldest that was not. What
        workers reported of its update."""

    def state(self) -> PromptState:
        """For a checkpoint."""
        return PromptState()

    def restore(self, state: PromptState) -> None:
        """Go on from a checkpoint."""

    def roll_back(self, state: PromptState) -> None:
        """The weights are again those of a checkpoint; prompts go on where they are."""

    def metrics(self) -> dict[str, float]:
        """Of the last step."""
        return {}
