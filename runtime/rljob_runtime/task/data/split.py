"""Split a dataset into training items, held-out items and worked examples: three sets without a common
text.

The held-out set is drawn first and training omits its texts. So the two are disjoint for any number of
steps, and for the warm-up too. Prompts that are too long are omitted from both.
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
class DroppedItems:
    """Items that were drawn for training and dropped, each counted once."""

    too_long: set[int] = field(default_factory=set)
    held_out: set[int] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteItems:
    """The items that a suite is drawn from. num_prompts: number of prompts. generated: whether the
    questions are draws of a generator and not a full data set."""

    name: str
    questions: Sequence[Question]
    num_prompts: int
    generated: bool


class Items(Protocol):
    """Items of a generator, each derived from its number and the generator's seed."""

    def __getitem__(self, index: int) -> Question: ...


class Split(Protocol):
    """A dataset divided into its sets. size: number of training items; held_out: the evaluation's
    prompts."""

    size: int
    held_out: list[Prompt]
    left_out: DroppedItems

    def train(self, index: int, *, draw: int = 0) -> Prompt:
        """Return the training item `index`, below `size`. Raises ConfigError if there is none.

        draw: number of the step in the training stream, from 0, which determines a curriculum's level.
        """
        ...

    def hold_out(self, questions: SuiteItems) -> list[Prompt]:
        """Return the prompts of a suite, which training omits from now on. Raises ConfigError if there
        are none."""
        ...


class GeneratedSplit:
    """Split of a generator's items: a dropped item is replaced by the item `size` further on."""

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
        self.left_out = DroppedItems()
        drawn, self._items = items(HELD_OUT_SEEDS), items(0)
        levels = plan.levels if plan else []
        self._items_by_level = {level: generated(source.at(level), seed=base) for level in levels}
        examples = take_examples(items(EXAMPLE_SEEDS), data)
        self._maker = make_maker(examples)
        self._taken = {self._maker.key(example) for example in examples}
        scan = max(MIN_SCAN, SCAN_FACTOR * held_out)
        self.held_out = draw_held_out(
            (drawn[i] for i in range(scan)), self._maker, num_prompts=held_out, taken=self._taken
        )

    def train(self, index: int, *, draw: int = 0) -> Prompt:
        """Return the item, or the first suitable one of its replacements."""
        items = self._items_by_level[self._plan.level(draw)] if self._plan else self._items
        for number in range(index, index + MAX_REPLACEMENTS * self.size, self.size):
            question = items[number]
            if self._maker.key(question) in self._taken:
                self.left_out.held_out.add(number)
            elif (prompt := self._maker.prompt(question, index=index)) is None:
                self.left_out.too_long.add(number)
            else:
                return self._maker.load_pictures(prompt)
        raise ConfigError(no_prompts(self._maker, f"{MAX_REPLACEMENTS} items in a row"))

    def hold_out(self, questions: SuiteItems) -> list[Prompt]:
        """Return the prompts of a suite, which training omits from now on. Raises ConfigError if there
        are none."""
        return draw_suite(questions, self._maker, taken=self._taken)


class ListSplit:
    """Split of a finite list of items, shuffled by the seed: first examples, then held-out items, then
    training items."""

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
        self.held_out = draw_held_out(
            lines, maker, num_prompts=held_out, taken=taken, exhaustive=True
        )
        self._lines, self._train_size = lines, data.train_size
        self._choose()

    def _choose(self) -> None:
        """Choose the training items: those that no other set has and that are not too long."""
        maker, lines = self._maker, self._lines
        self.left_out = DroppedItems()
        self._prompts: list[Prompt] = []
        for number, question in enumerate(lines):
            if maker.key(question) in self._taken:
                self.left_out.held_out.add(number)
            elif (prompt := maker.prompt(question, index=len(self._prompts))) is None:
                self.left_out.too_long.add(number)
            elif len(self._prompts) < self._train_size:
                self._prompts.append(prompt)
        self.size = len(self._prompts)
        if not self.size:
            raise ConfigError(no_prompts(maker, f"all {len(lines)} items"))

    def train(self, index: int, *, draw: int = 0) -> Prompt:
        """Return the item, or the next one whose pictures can be decoded; all prompts were made at the
        start."""
        for number in range(index, index + self.size):
            prompt = self._maker.load_pictures_or_drop(self._prompts[number % self.size])
            if prompt is not None:
                return prompt
            self.left_out.unreadable.add(number % self.size)
        raise ConfigError(
            f"no picture of {self.size} rows can be decoded, and rows are left out for that "
            "(spec.data.onBadRow): nothing is left to train on; the run's log says what is wrong with each"
        )

    def hold_out(self, questions: SuiteItems) -> list[Prompt]:
        """Return the prompts of a suite, which training omits from now on. Raises ConfigError if there
        are none."""
        prompts = draw_suite(questions, self._maker, taken=self._taken)
        self._choose()
        return prompts


def generated(source: ReasoningGymData | DrawnData, *, seed: int) -> Items:
    """Return the endless items of a generator with one seed."""
    if isinstance(source, DrawnData):
        return DrawnItems(source, seed=seed)
    return GymItems(source, seed=seed)


def take_examples(items: Sequence[Question] | Items, data: Data) -> list[Question]:
    """Return the worked examples: the first different questions. Raises ConfigError if there are too
    few."""
    num_examples = data.few_shot.examples if data.few_shot else 0
    examples: dict[tuple[str, ...], Question] = {}
    for i in range(MIN_SCAN if num_examples else 0):
        if isinstance(items, Sequence) and i >= len(items):
            break
        key = items[i].fields["question"], *(picture.key for picture in items[i].pictures)
        examples.setdefault(key, items[i])
        if len(examples) == num_examples:
            break
    if len(examples) < num_examples:
        raise ConfigError(
            f"spec.data.fewShot.examples is {num_examples}, but the data has only {len(examples)} different "
            "questions; lower it, or add data"
        )
    return list(examples.values())


def draw_held_out(
    questions: Iterable[Question],
    maker: PromptMaker,
    *,
    num_prompts: int,
    taken: set[str],
    exhaustive: bool = False,
) -> list[Prompt]:
    """Return different held-out prompts: `num_prompts` of them, or as many as a small dataset can spare.

    taken: keys of questions in other sets; those of the held-out prompts are added to it. exhaustive:
    `questions` is the full dataset, not draws from it. Raises ConfigError if there are none.
    """
    if not num_prompts:
        return []
    prompts: dict[str, Prompt | None] = {}
    scanned = repeats = 0
    for question in questions:
        scanned += 1
        key = maker.key(question)
        if key in prompts or key in taken:
            repeats += 1
            continue
        prompts[key] = maker.prompt(question, index=len(prompts))
        usable = (
            sum(prompt is not None for prompt in prompts.values())
            if len(prompts) >= num_prompts
            else 0
        )
        if usable >= num_prompts and not exhaustive and repeats <= REPEATS_OF_SMALL * scanned:
            break
    else:
        num_prompts = min(num_prompts, int(MAX_HELD_OUT_SHARE * len(prompts)))
    fitting = ((key, prompt) for key, prompt in prompts.items() if prompt is not None)
    selected = list(
        islice((pair for pair in fitting if maker.load_pictures_or_drop(pair[1])), num_prompts)
    )
    if not selected:
        raise ConfigError(
            f"of {scanned} questions {len(prompts)} are different, and "
            f"{sum(p is not None for p in prompts.values())} of these fit into "
            f"{maker.max_prompt_length} tokens (spec.batch.maxPromptLength): too few to hold "
            "prompts out for spec.evaluation; add data, choose parameters that give more "
            "questions, or leave the evaluation out"
        )
    taken.update(key for key, _ in selected)
    return [prompt for _, prompt in selected]


def draw_suite(items: SuiteItems, maker: PromptMaker, *, taken: set[str]) -> list[Prompt]:
    """Return different prompts of a suite that are in no other set. Raises ConfigError if there are none.

    taken: keys of questions in other sets; those of the suite are added to it.
    """
    prompts: dict[str, Prompt] = {}
    num_prompts, scanned, repeats = items.num_prompts, 0, 0
    for question in items.questions:
        scanned += 1
        key = maker.key(question)
        if key in prompts or key in taken:
            repeats += 1
        elif prompt := maker.prompt(question, index=len(prompts)):
            prompts |= {key: prompt} if maker.load_pictures_or_drop(prompt) else {}
        if len(prompts) == num_prompts and repeats <= REPEATS_OF_SMALL * scanned:
            break
    if items.generated and repeats > REPEATS_OF_SMALL * scanned:  # leave some to train on
        num_prompts = min(num_prompts, int(MAX_HELD_OUT_SHARE * len(prompts)))
    selected = list(prompts.items())[:num_prompts]
    if not selected:
        raise ConfigError(
            f"spec.evaluation.suites: {items.name} has too few different prompts of at most "
            f"{maker.max_prompt_length} tokens (spec.batch.maxPromptLength) that no other set holds "
            f"among {scanned} items; give it other data, or leave it out"
        )
    taken.update(key for key, _ in selected)
    return [prompt for _, prompt in selected]


def no_prompts(maker: PromptMaker, subject: str) -> str:
    """Return the message for a dataset without prompts to train on."""
    return (
        f"{subject} are held out, worked examples, or longer than {maker.max_prompt_length} tokens "
        "(spec.batch.maxPromptLength): nothing is left to train on; raise maxPromptLength, lower "
        "spec.evaluation.prompts, or choose data with more, or shorter, questions"
    )
