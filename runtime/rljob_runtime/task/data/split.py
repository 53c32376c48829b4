"""Training items, held-out items and worked examples of a dataset: three sets without a common text.

The held-out set is drawn first and training leaves its texts out, so the two are disjoint for any
number of steps, and for the warm-up too. Prompts that are too long are left out of both.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from rljob_api.spec.workload import Data, DrawnData, ReasoningGymData
from rljob_runtime.errors import ConfigError
from rljob_runtime.prompts.order import permute
from rljob_runtime.samples.seeds import derive_seed
from rljob_runtime.task.data.drawn import DrawnItems
from rljob_runtime.task.data.gym import GymItems
from rljob_runtime.task.data.question import Prompt, PromptMaker, Question

# Held-out prompts take at most this share of a small dataset's different prompts.
MAX_HELD_OUT_SHARE = 1 / 4
# A generator counts as small when more than this share of its draws repeat an earlier one.
REPEATS_OF_SMALL = 1 / 8
SCAN_FACTOR, MIN_SCAN = 8, 256
MAX_REPLACEMENTS = 200
# Distances between the sets' seeds: item i is seeded with seed + i. Suites have those below BASE_SEEDS.
SUITE_SEEDS = 2**28
BASE_SEEDS, HELD_OUT_SEEDS, EXAMPLE_SEEDS = 2**29, 2**30, 2**30 + 2**29

MakePromptMaker = Callable[[Sequence[Question]], PromptMaker]


@dataclass(slots=True, kw_only=True)
class LeftOut:
    """Items that were drawn for training and left out, each counted once."""

    too_long: set[int] = field(default_factory=set)
    held_out: set[int] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteItems:
    """What a suite is drawn from. wanted: prompts. generated: draws of a generator, not a whole data set."""

    name: str
    questions: Sequence[Question]
    wanted: int
    generated: bool


class Items(Protocol):
    """Items of a generator, each made of its number and the generator's seed."""

    def __getitem__(self, index: int) -> Question: ...


class Split(Protocol):
    """A dataset in its sets. size: number of training items; held_out: the evaluation's prompts."""

    size: int
    held_out: list[Prompt]
    left_out: LeftOut

    def train(self, index: int, *, draw: int = 0) -> Prompt:
        """The training item `index`, below `size`. Raises ConfigError when none can be had.

        draw: number of the step in the training stream, from 0, which a curriculum goes by.
        """
        ...

    def hold_out(self, questions: SuiteItems) -> list[Prompt]:
        """Prompts of a suite, which training leaves out from now on. Raises ConfigError for none."""
        ...


class GeneratedSplit:
    """Items of a generator: one that is left out is replaced by the item `size` further on."""

    def __init__(
        self,
        source: ReasoningGymData | DrawnData,
        data: Data,
        make_maker: MakePromptMaker,
        *,
        held_out: int,
        seed: int,
    ) -> None:
        base = derive_seed(seed, "items") % BASE_SEEDS
        self._plan = plan = source.curriculum
        last = source.at(plan.levels[-1]) if plan else source

        def items(offset: int) -> Items:
            return generated(last, seed=base + offset)

        self.size = data.train_size
        self.left_out = LeftOut()
        drawn, self._items = items(HELD_OUT_SEEDS), items(0)
        levels = plan.levels if plan else []
        self._of_level = {level: generated(source.at(level), seed=base) for level in levels}
        examples = take_examples(items(EXAMPLE_SEEDS), data)
        self._maker = make_maker(examples)
        self._taken = {self._maker.key(example) for example in examples}
        scan = max(MIN_SCAN, SCAN_FACTOR * held_out)
        self.held_out = draw_held_out(
            (drawn[i] for i in range(scan)), self._maker, wanted=held_out, taken=self._taken
        )

    def train(self, index: int, *, draw: int = 0) -> Prompt:
        """The item, or the first good one of its replacements."""
        items = self._of_level[self._plan.level(draw)] if self._plan else self._items
        for place in range(index, index + MAX_REPLACEMENTS * self.size, self.size):
            question = items[place]
            if self._maker.key(question) in self._taken:
                self.left_out.held_out.add(place)
            elif (prompt := self._maker.prompt(question, index=index)) is None:
                self.left_out.too_long.add(place)
            else:
                return self._maker.seen(prompt)
        raise ConfigError(no_prompts(self._maker, f"{MAX_REPLACEMENTS} items in a row"))

    def hold_out(self, questions: SuiteItems) -> list[Prompt]:
        """Prompts of a suite, which training leaves out from now on. Raises ConfigError for none."""
        return draw_suite(questions, self._maker, taken=self._taken)


class ListSplit:
    """Items that are all there, in an order made by the seed: examples, then held-out, then training."""

    def __init__(
        self,
        questions: Sequence[Question],
        data: Data,
        make_maker: MakePromptMaker,
        *,
        held_out: int,
        seed: int,
    ) -> None:
        order_seed = derive_seed(seed, "lines")
        lines = [
            questions[permute(i, size=len(questions), seed=order_seed)]
            for i in range(len(questions))
        ]
        examples = take_examples(lines, data)
        self._maker = maker = make_maker(examples)
        self._taken = taken = {maker.key(example) for example in examples}
        self.held_out = draw_held_out(lines, maker, wanted=held_out, taken=taken, exhaustive=True)
        self._lines, self._train_size = lines, data.train_size
        self._choose()

    def _choose(self) -> None:
        """The training items: what is not taken and not too long."""
        maker, lines = self._maker, self._lines
        self.left_out = LeftOut()
        self._prompts: list[Prompt] = []
        for place, question in enumerate(lines):
            if maker.key(question) in self._taken:
                self.left_out.held_out.add(place)
            elif (prompt := maker.prompt(question, index=len(self._prompts))) is None:
                self.left_out.too_long.add(place)
            elif len(self._prompts) < self._train_size:
                self._prompts.append(prompt)
        self.size = len(self._prompts)
        if not self.size:
            raise ConfigError(no_prompts(maker, f"all {len(lines)} items"))

    def train(self, index: int, *, draw: int = 0) -> Prompt:
        """The item, or the next one whose pictures can be decoded; all of them were made at the start."""
        for place in range(index, index + self.size):
            prompt = self._maker.seen_or_left_out(self._prompts[place % self.size])
            if prompt is not None:
                return prompt
            self.left_out.unreadable.add(place % self.size)
        raise ConfigError(
            f"no picture of {self.size} rows can be decoded, and rows are left out for that "
            "(spec.data.onBadRow): nothing is left to train on; the run's log says what is wrong with each"
        )

    def hold_out(self, questions: SuiteItems) -> list[Prompt]:
        """Prompts of a suite, which training leaves out from now on. Raises ConfigError for none."""
        found = draw_suite(questions, self._maker, taken=self._taken)
        self._choose()
        return found


def generated(source: ReasoningGymData | DrawnData, *, seed: int) -> Items:
    """The endless items of a generator under one seed."""
    if isinstance(source, DrawnData):
        return DrawnItems(source, seed=seed)
    return GymItems(source, seed=seed)


def take_examples(items: Sequence[Question] | Items, data: Data) -> list[Question]:
    """The worked examples: the first different questions. Raises ConfigError when too few."""
    wanted = data.few_shot.examples if data.few_shot else 0
    found: dict[tuple[str, ...], Question] = {}
    for i in range(MIN_SCAN if wanted else 0):
        if isinstance(items, Sequence) and i >= len(items):
            break
        asked = items[i].fields["question"], *(picture.key for picture in items[i].pictures)
        found.setdefault(asked, items[i])
        if len(found) == wanted:
            break
    if len(found) < wanted:
        raise ConfigError(
            f"spec.data.fewShot.examples is {wanted}, but the data has only {len(found)} different "
            "questions; lower it, or add data"
        )
    return list(found.values())


def draw_held_out(
    questions: Iterable[Question],
    maker: PromptMaker,
    *,
    wanted: int,
    taken: set[str],
    exhaustive: bool = False,
) -> list[Prompt]:
    """Different held-out prompts, as many as wanted or as a small dataset can spare.

    taken: keys of questions that other sets hold; those of the held-out prompts are added to it.
    exhaustive: `questions` is the whole dataset, not draws from it. Raises ConfigError for none.
    """
    if not wanted:
        return []
    found: dict[str, Prompt | None] = {}
    scanned = repeats = 0
    for question in questions:
        scanned += 1
        key = maker.key(question)
        if key in found or key in taken:
            repeats += 1
            continue
        found[key] = maker.prompt(question, index=len(found))
        usable = sum(prompt is not None for prompt in found.values()) if len(found) >= wanted else 0
        if usable >= wanted and not exhaustive and repeats <= REPEATS_OF_SMALL * scanned:
            break
    else:
        wanted = min(wanted, int(MAX_HELD_OUT_SHARE * len(found)))
    fit = ((key, prompt) for key, prompt in found.items() if prompt is not None)
    kept = list(islice((pair for pair in fit if maker.seen_or_left_out(pair[1])), wanted))
    if not kept:
        raise ConfigError(
            f"of {scanned} questions {len(found)} are different, and "
            f"{sum(p is not None for p in found.values())} of these fit into "
            f"{maker.max_prompt_length} tokens (spec.batch.maxPromptLength): too few to hold "
            "prompts out for spec.evaluation; add data, choose parameters that give more "
            "questions, or leave the evaluation out"
        )
    taken.update(key for key, _ in kept)
    return [prompt for _, prompt in kept]


def draw_suite(items: SuiteItems, maker: PromptMaker, *, taken: set[str]) -> list[Prompt]:
    """Different prompts of a suite that no other set holds. Raises ConfigError for none.

    taken: keys of questions that other sets hold; those of the suite are added to it.
    """
    found: dict[str, Prompt] = {}
    wanted, scanned, repeats = items.wanted, 0, 0
    for question in items.questions:
        scanned += 1
        key = maker.key(question)
        if key in found or key in taken:
            repeats += 1
        elif prompt := maker.prompt(question, index=len(found)):
            found |= {key: prompt} if maker.seen_or_left_out(prompt) else {}
        if len(found) == wanted and repeats <= REPEATS_OF_SMALL * scanned:
            break
    if items.generated and repeats > REPEATS_OF_SMALL * scanned:  # leave some to train on
        wanted = min(wanted, int(MAX_HELD_OUT_SHARE * len(found)))
    kept = list(found.items())[:wanted]
    if not kept:
        raise ConfigError(
            f"spec.evaluation.suites: {items.name} has too few different prompts of at most "
            f"{maker.max_prompt_length} tokens (spec.batch.maxPromptLength) that no other set holds "
            f"among {scanned} items; give it other data, or leave it out"
        )
    taken.update(key for key, _ in kept)
    return [prompt for _, prompt in kept]


def no_prompts(maker: PromptMaker, what: str) -> str:
    """The message of a dataset without prompts to train on."""
    return (
        f"{what} are held out, worked examples, or longer than {maker.max_prompt_length} tokens "
        "(spec.batch.maxPromptLength): nothing is left to train on; raise maxPromptLength, lower "
        "spec.evaluation.prompts, or choose data with more, or shorter, questions"
    )
