"""Define which prompts each step of a run requests. This is the driver's side, which reads no samples.
Pure.

The driver calls a schedule without checking its kind. `PromptSchedule` is the plain one; the others
override what they need. Prompts are identified by their positions in the training stream, counted from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from rljob_runtime.prompts.rounds import CandidateRound, Round, Selection
from rljob_runtime.samples.batches import BatchName


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A request for one training batch. round: the partial rollout round that generates it. positions:
    those of its prompts, where they are chosen one by one."""

    batch: BatchName
    round: Round | None = None
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptState:
    """The state of a schedule in a checkpoint. first_new_prompt: the first position that no step has
    begun. open_prompts: positions that were begun but not trained on. difficulty: the records of
    training items."""

    first_new_prompt: int = 0
    open_prompts: list[int] = field(default_factory=list)
    difficulty: list[list[int]] = field(default_factory=list)


class PassResults(Protocol):
    """The results of samples: for each one its prompt's number in the step, and 1 if it passed.
    failed: number of samples with an error."""

    @property
    def prompts(self) -> Sequence[int]:
        """Return each sample's prompt number in the step; samples whose score failed have no entry."""
        ...

    @property
    def passes(self) -> Sequence[float]:
        """Return 1 for each sample that passed its first reward, otherwise 0, in the order of `prompts`."""
        ...

    @property
    def failed(self) -> int:
        """Return how many samples a scorer failed on, all absent from `prompts` and `passes`."""
        ...


class SampleOrigin(Protocol):
    """The part of an update's report that lists the prompts of its samples."""

    @property
    def positions(self) -> Sequence[int]:
        """Return the prompts' positions in the training stream, counted from 0."""
        ...


class UpdateSummary(Protocol):
    """The fields of an update's report that schedules read. passed: results of the trained samples,
    only with a difficulty filter."""

    @property
    def lineage(self) -> SampleOrigin | None:
        """Return the origin of the samples; None without partial rollout, or if the update is not the
        policy's."""
        ...

    @property
    def passed(self) -> PassResults | None:
        """Return the results of the samples; None without a filter, or if the update is not the policy's."""
        ...


class PromptSchedule:
    """The plain schedule: each step requests the next prompts, in order."""

    __slots__ = ()

    in_rounds: ClassVar[bool] = False
    """Whether rounds of generation must fill a batch before the other stages of its step begin."""

    lost_together: ClassVar[bool] = False
    """Whether pending batches contain leftovers of others, so that all of them are lost with one."""

    def set_num_items(self, items: int) -> None:
        """Set the number of training items. Called once, before the first step."""

    def begin(
        self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1
    ) -> BatchRequest:
        """Begin a step. skipped: number of abandoned steps, whose prompts are not requested again.
        replicas: number of generating replicas."""
        return BatchRequest(
            batch=BatchName(kind="train", step=step, attempt=attempt, skipped=skipped)
        )

    def next_round(self, step: int) -> CandidateRound | None:
        """Return the next round that the step's batch needs, or None if it needs no more."""
        return None

    def record_selection(self, selection: Selection) -> None:
        """Record which groups of a round were selected."""

    def shortage(self, after: str) -> str:
        """Explain why the batch is not full after all rounds, or after the time that `after` names.
        Return "" if it is full."""
        return ""

    def start_over(self, *, trained: bool = False) -> None:
        """Discard all pending batches. trained: whether the step's own batch was trained on
        nevertheless."""

    def finish_step(self, reports: Sequence[UpdateSummary]) -> None:
        """Mark the oldest step that was not yet trained on as trained. reports: what the workers
        reported of its update."""

    def state(self) -> PromptState:
        """Return the state to store in a checkpoint."""
        return PromptState()

    def restore(self, state: PromptState) -> None:
        """Continue from a checkpoint's state."""

    def roll_back(self, state: PromptState) -> None:
        """Forget what discarded weights have learned: the weights are again those of a checkpoint.
        Prompts continue where they are."""

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last step."""
        return {}
