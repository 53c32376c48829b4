"""Filter prompts by difficulty on the driver's side: decide which prompts a step requests, and which
rest. Pure.

Training items are identified by their numbers, and prompts by their positions in the training stream. Of
samples it learns only which ones passed. Its draws depend on the seed and on these results alone, so a
checkpoint of both resumes identically.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rljob_api.spec.workload import Curriculum, DifficultyFilter
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.order import item_at
from rljob_runtime.prompts.schedule import (
    BatchRequest,
    PassResults,
    PromptSchedule,
    PromptState,
    UpdateSummary,
)

MOST_KNOWN = 100_000
"""The most recently requested items that are remembered: a bound on the checkpoint's size."""


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """What is known of an item. alike: number of visits in a row in which all its samples were right;
    negative if all were wrong. until: the first pass that requests it again."""

    alike: int
    until: int


@dataclass(slots=True, kw_only=True)
class Difficulty(PromptSchedule):
    """The difficulty filter of a run. prompts: number of prompts of a step. size: number of training
    items, set before the first step. first_new: position of the first prompt that no step has
    considered. drawn: positions of the step's prompts."""

    chosen: DifficultyFilter
    prompts: int
    seed: int
    curriculum: Curriculum | None = None
    size: int = 0
    first_new: int = 0
    drawn: tuple[int, ...] = ()
    _records: dict[int, ItemRecord] = field(default_factory=dict)
    _level: int = 0
    _passed_over: int = 0

    @classmethod
    def of(cls, spec: ResolvedSpec) -> "Difficulty | None":
        """Return the schedule of a job with a difficulty filter, or None for other jobs."""
        generator = spec.data.generator
        if spec.data.difficulty_filter is None:
            return None
        return cls(
            chosen=spec.data.difficulty_filter,
            prompts=spec.batch.global_batch_size,
            seed=spec.seed,
            curriculum=generator.curriculum if generator else None,
        )

    def set_num_items(self, items: int) -> None:
        """Set the number of training items that the filter chooses from."""
        self.size = items

    def begin(
        self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1
    ) -> BatchRequest:
        """Begin a step with the positions of prompts that do not rest."""
        request = PromptSchedule.begin(self, step, attempt=attempt, skipped=skipped)
        return replace(request, positions=self.draw(request.batch.draw))

    def finish_step(self, reports: Sequence[UpdateSummary]) -> None:
        """Learn which of the step's prompts were easy and which hard."""
        self.learn(report.passed for report in reports if report.passed is not None)

    def draw(self, step: int) -> tuple[int, ...]:
        """Return the positions of a step's prompts: the next ones whose items do not rest. The result is
        the same until `learn`.

        step: number in the training stream, from 1, which determines the curriculum's level. Each level
        has its own items, and records of other levels are forgotten.
        """
        self._level = self.curriculum.level(step - 1) if self.curriculum else 0
        of_level = range(self._level * self.size, (self._level + 1) * self.size)
        self._records = {key: record for key, record in self._records.items() if key in of_level}
        positions, position = list[int](), self.first_new
        while len(positions) < self.prompts:  # maxShare leaves items in every pass
            record = self._records.get(self._key(position))
            if record is None or position // self.size >= record.until:
                positions.append(position)
            position += 1
        self.drawn = tuple(positions)
        self._passed_over = position - self.first_new - len(positions)
        return self.drawn

    def learn(self, reports: Iterable[PassResults]) -> None:
        """Record the results of the step that was trained on. A group without any report gives no
        information. Neither does a group without a right sample where a scorer failed."""
        passes: dict[int, list[float]] = {}
        failed = False
        for report in reports:
            failed |= report.failed > 0
            for number, passed in zip(report.prompts, report.passes, strict=True):
                passes.setdefault(number, []).append(passed)
        self.first_new = self.drawn[-1] + 1
        resting = len(self._resting())
        for number in sorted(passes):
            share = sum(passes[number]) / len(passes[number])
            if share > 0 or not failed:
                resting += self._record_share(
                    self.drawn[number], share, room=resting < self._most_resting
                )
        for oldest in list(self._records)[: max(len(self._records) - MOST_KNOWN, 0)]:
            del self._records[oldest]

    def known(self) -> list[list[int]]:
        """Return all records in the form that `remember` reads: item, visits alike, pass that requests
        it again."""
        return [[key, record.alike, record.until] for key, record in self._records.items()]

    def remember(self, known: Sequence[Sequence[int]]) -> None:
        """Replace all records by these."""
        self._records = {key: ItemRecord(alike, until) for key, alike, until in known}

    def state(self) -> PromptState:
        """Return the state for a checkpoint, including all records."""
        return PromptState(first_new_prompt=self.first_new, difficulty=self.known())

    def restore(self, state: PromptState) -> None:
        """Continue from a state that `state` returned."""
        self.first_new = state.first_new_prompt
        self.remember(state.difficulty)

    def roll_back(self, state: PromptState) -> None:
        """Restore the records of the state, since later ones come from discarded weights."""
        self.remember(state.difficulty)

    def metrics(self) -> dict[str, float]:
        """Return the metrics after the last step."""
        right = sum(record.alike > 0 for record in self._resting())
        return {
            "difficulty/left_out": float(len(self._resting())),
            "difficulty/all_right": float(right),
            "difficulty/all_wrong": float(len(self._resting()) - right),
            "difficulty/passed_over": float(self._passed_over),
        }

    @property
    def _most_resting(self) -> int:
        return int(self.chosen.max_share * self.size)

    def _resting(self) -> list[ItemRecord]:
        """Return the items that are left out in the next prompt's pass."""
        return [
            record
            for record in self._records.values()
            if record.until > self.first_new // self.size
        ]

    def _record_share(self, position: int, share: float, *, room: bool) -> int:
        """Record the share of a prompt's samples that were right. Return by how much the number of
        resting items grew."""
        key = self._key(position)
        before = self._records.pop(key, ItemRecord(0, 0))
        sides = {"both": (0, 1), "all-right": (1,), "all-wrong": (0,)}
        rested = before.until > self.first_new // self.size  # of a step with several of its visits
        if share not in sides[self.chosen.leave_out]:
            return -rested
        alike = max(before.alike, 0) + 1 if share else min(before.alike, 0) - 1
        rests = abs(alike) >= self.chosen.visits and (room or rested)
        current_pass = position // self.size
        self._records[key] = ItemRecord(
            alike, current_pass + 1 + self.chosen.rest_passes if rests else 0
        )
        return rests - rested

    def _key(self, position: int) -> int:
        """Return the key of the item at a position, on the current level."""
        return self._level * self.size + item_at(position, size=self.size, seed=self.seed)
