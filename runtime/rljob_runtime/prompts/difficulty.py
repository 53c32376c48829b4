"""The difficulty filter on the driver's side: which prompts a step asks, and which rest for a while. Pure.

It knows training items by their numbers, prompts by their positions in the training stream, and of samples
only which of them passed. What it draws depends on the seed and on what it learned alone, so that a
checkpoint of both goes on alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rljob_api.spec.workload import Curriculum, DifficultyFilter
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.order import item_at
from rljob_runtime.prompts.schedule import Asked, PromptState, Schedule, Scored, Updated

MOST_KNOWN = 100_000
"""So many items are remembered, those that were asked last: a bound of the checkpoint's size."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Of an item. alike: times in a row that all its samples were right, negative: wrong. until: the first
    pass that asks it again."""

    alike: int
    until: int


@dataclass(slots=True, kw_only=True)
class Difficulty(Schedule):
    """The filter of a run. prompts: of a step. size: training items, set before the first step. first_new:
    position of the first prompt that no step has looked at. drawn: positions of the step's prompts."""

    chosen: DifficultyFilter
    prompts: int
    seed: int
    curriculum: Curriculum | None = None
    size: int = 0
    first_new: int = 0
    drawn: tuple[int, ...] = ()
    _seen: dict[int, Seen] = field(default_factory=dict)
    _level: int = 0
    _passed_over: int = 0

    @classmethod
    def of(cls, spec: ResolvedSpec) -> "Difficulty | None":
        """That of a job which has one."""
        generator = spec.data.generator
        if spec.data.difficulty_filter is None:
            return None
        return cls(
            chosen=spec.data.difficulty_filter,
            prompts=spec.batch.global_batch_size,
            seed=spec.seed,
            curriculum=generator.curriculum if generator else None,
        )

    def sized(self, items: int) -> None:
        """All of them take turns."""
        self.size = items

    def begin(self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1) -> Asked:
        """With the positions of prompts that do not rest."""
        asked = Schedule.begin(self, step, attempt=attempt, skipped=skipped)
        return replace(asked, positions=self.draw(asked.batch.draw))

    def trained(self, updated: Sequence[Updated]) -> None:
        """Which of its prompts were easy, and which hard."""
        self.learn(report.passed for report in updated if report.passed is not None)

    def draw(self, step: int) -> tuple[int, ...]:
        """Positions of a step's prompts: the next ones whose items do not rest. The same until `learn`.

        step: number in the training stream, from 1, which the curriculum goes by. Items of other levels are
        other items, and forgotten.
        """
        self._level = self.curriculum.level(step - 1) if self.curriculum else 0
        of_level = range(self._level * self.size, (self._level + 1) * self.size)
        self._seen = {key: seen for key, seen in self._seen.items() if key in of_level}
        found, position = list[int](), self.first_new
        while len(found) < self.prompts:  # maxShare leaves items in every pass
            seen = self._seen.get(self._key(position))
            if seen is None or position // self.size >= seen.until:
                found.append(position)
            position += 1
        self.drawn = tuple(found)
        self._passed_over = position - self.first_new - len(found)
        return self.drawn

    def learn(self, reports: Iterable[Scored]) -> None:
        """The step was trained on. Groups that no report has, and groups without a right sample where a
        scorer failed, tell nothing."""
        passes: dict[int, list[float]] = {}
        failed = False
        for report in reports:
            failed |= report.failed > 0
            for place, passed in zip(report.prompts, report.passes, strict=True):
                passes.setdefault(place, []).append(passed)
        self.first_new = self.drawn[-1] + 1
        resting = len(self._resting())
        for place in sorted(passes):
            share = sum(passes[place]) / len(passes[place])
            if share > 0 or not failed:
                resting += self._saw(self.drawn[place], share, room=resting < self._most_resting)
        for oldest in list(self._seen)[: max(len(self._seen) - MOST_KNOWN, 0)]:
            del self._seen[oldest]

    def known(self) -> list[list[int]]:
        """What it has learned, for `remember`: item, times alike, pass that asks it again."""
        return [[key, seen.alike, seen.until] for key, seen in self._seen.items()]

    def remember(self, known: Sequence[Sequence[int]]) -> None:
        """Know this and nothing else."""
        self._seen = {key: Seen(alike, until) for key, alike, until in known}

    def state(self) -> PromptState:
        """With all that it has learned."""
        return PromptState(first_new_prompt=self.first_new, difficulty=self.known())

    def restore(self, state: PromptState) -> None:
        """As `state` left it."""
        self.first_new = state.first_new_prompt
        self.remember(state.difficulty)

    def roll_back(self, state: PromptState) -> None:
        """What was learned since was of weights that are undone."""
        self.remember(state.difficulty)

    def metrics(self) -> dict[str, float]:
        """After the last step."""
        right = sum(seen.alike > 0 for seen in self._resting())
        return {
            "difficulty/left_out": float(len(self._resting())),
            "difficulty/all_right": float(right),
            "difficulty/all_wrong": float(len(self._resting()) - right),
            "difficulty/passed_over": float(self._passed_over),
        }

    @property
    def _most_resting(self) -> int:
        return int(self.chosen.max_share * self.size)

    def _resting(self) -> list[Seen]:
        """Items that the pass of the next prompt leaves out."""
        return [seen for seen in self._seen.values() if seen.until > self.first_new // self.size]

    def _saw(self, position: int, share: float, *, room: bool) -> int:
        """Take in the share of a prompt's samples that were right; returns by how much more items rest."""
        key = self._key(position)
        before = self._seen.pop(key, Seen(0, 0))
        sides = {"both": (0, 1), "all-right": (1,), "all-wrong": (0,)}
        rested = before.until > self.first_new // self.size  # of a step with several of its visits
        if share not in sides[self.chosen.leave_out]:
            return -rested
        alike = max(before.alike, 0) + 1 if share else min(before.alike, 0) - 1
        rests = abs(alike) >= self.chosen.visits and (room or rested)
        now = position // self.size
        self._seen[key] = Seen(alike, now + 1 + self.chosen.rest_passes if rests else 0)
        return rests - rested

    def _key(self, position: int) -> int:
        """Of the item at a position, at the present level."""
        return self._level * self.size + item_at(position, size=self.size, seed=self.seed)
