"""The prompts of a run: what each training step asks, and what evaluation asks.

Pure functions of (seed, step): a resumed run asks the same as one that was never stopped. Called by
the prompt feeder and by the warm-up of `tiny`.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from rljob_api.spec.evaluation import OWN_DATA, Evaluation, EvaluationSet
from rljob_api.spec.workload import Batch, Data
from rljob_runtime.errors import ConfigError
from rljob_runtime.prompts.order import item_at
from rljob_runtime.samples.seeds import derive_seed
from rljob_runtime.task.data.game_split import GameSplit
from rljob_runtime.task.data.games import GameItems
from rljob_runtime.task.data.items import read_items
from rljob_runtime.task.data.jsonl import JsonlFile, read_prompts
from rljob_runtime.task.data.preferences import read_preferences
from rljob_runtime.task.data.question import Prompt, PromptMaker, Question
from rljob_runtime.task.data.split import (
    HELD_OUT_SEEDS,
    MIN_SCAN,
    SCAN_FACTOR,
    SUITE_SEEDS,
    GeneratedSplit,
    ListSplit,
    MakePromptMaker,
    Split,
    SuiteItems,
    generated,
)
from rljob_runtime.task.pictures.processor import PictureProcessor
from rljob_runtime.task.tokenizer import Tokenizer, opening

__all__ = ["Prompt", "PromptSource"]

log = logging.getLogger(__name__)


class PromptSource:
    """All prompts of a run; held_out: how many prompts of its own data evaluation asks for, 0 without one;
    suites: the other sets that it asks; processor: of a model that sees pictures; agent: whether an agent
    says what is asked, behind a prompt of the chat template's first token."""

    def __init__(
        self,
        data: Data,
        *,
        batch: Batch,
        tokenizer: Tokenizer,
        seed: int,
        base_dir: Path,
        held_out: int = 0,
        suites: Sequence[EvaluationSet] = (),
        processor: PictureProcessor | None = None,
        agent: bool = False,
    ) -> None:
        self._batch, self._seed, self._asked = batch, seed, held_out
        self._tower = tower = processor is not None

        def make_maker(examples: Sequence[Question]) -> PromptMaker:
            return PromptMaker(
                data,
                tokenizer,
                batch.max_prompt_length,
                examples,
                batch.max_response_length,
                processor,
                opening(tokenizer) if agent else None,
            )

        self._maker = make_maker([])
        self._split = self._own(data, make_maker, base_dir)
        self._held_out = {OWN_DATA: self._split.held_out}
        for found in suites:
            assert found.suite is not None, "the job's own held-out prompts are in the split"
            of_suite = found.suite.data(data, found.level)
            items = suite_items(found, of_suite, base_dir, seed, tower=tower)
            self._held_out[found.name] = self._split.hold_out(items)

    def _own(self, data: Data, make_maker: MakePromptMaker, base_dir: Path) -> Split:
        """Training items, held-out items and worked examples of the job's own data."""
        held_out, seed = self._asked, self._seed
        if (generator := data.generator) is not None:
            return GeneratedSplit(generator, data, make_maker, held_out=held_out, seed=seed)
        if data.environment is not None:
            return GameSplit(data.environment, data, make_maker, held_out=held_out)
        questions = list_of(data, base_dir, tower=self._tower)
        assert questions, "the rules allow exactly one source of data"
        return ListSplit(questions, data, make_maker, held_out=held_out, seed=seed)

    def train(self, step: int) -> list[Prompt]:
        """The prompts of a training step, globalBatchSize of them; steps count from 1."""
        return self.draw("train", step, self._batch.global_batch_size)

    def train_at(self, positions: Sequence[int], *, step: int | None = None) -> list[Prompt]:
        """The prompts at these places of the training stream: step s asks those from (s − 1) ×
        globalBatchSize on. step: that a curriculum goes by in place of those steps."""
        self._begin("train", positions)
        return [self._at("train", position, step=step) for position in positions]

    def draw(self, stream: str, step: int, num_prompts: int) -> list[Prompt]:
        """A batch of training items in an order of the stream's own.

        Each pass over the items goes through all of them once, in another order.
        """
        first = (step - 1) * num_prompts
        positions = range(first, first + num_prompts)
        self._begin(stream, positions)
        return [self._at(stream, position) for position in positions]

    def heldout(self, name: str = OWN_DATA) -> list[Prompt]:
        """The prompts of a set in every evaluation; training has none of them. Raises PictureError where one
        cannot be decoded any more."""
        return [self._maker.seen(prompt) for prompt in self._held_out[name]]

    def facts(self) -> dict[str, int]:
        """Counts so far: what was held out, and what training left out for which reason."""
        left_out = self._split.left_out
        return {
            "train_size": self._split.size,
            "held_out": len(self._split.held_out),
            "held_out_asked": self._asked,
            "left_out_held_out": len(left_out.held_out),
            "left_out_too_long": len(left_out.too_long),
        }

    def _begin(self, stream: str, positions: Sequence[int]) -> None:
        if isinstance(self._split, GameSplit):
            size, seed = self._split.size, self._seed
            self._split.begin([item_at(p, size=size, seed=seed, stream=stream) for p in positions])

    def _at(self, stream: str, position: int, *, step: int | None = None) -> Prompt:
        index = item_at(position, size=self._split.size, seed=self._seed, stream=stream)
        if stream != "train":
            return self._split.train(index)
        by_place = position // self._batch.global_batch_size
        return self._split.train(index, draw=by_place if step is None else step - 1)


def suites_of(evaluation: Evaluation | None) -> list[EvaluationSet]:
    """What is evaluated beside the job's own held-out prompts."""
    sets = evaluation.sets() if evaluation else ()
    return [found for found in sets if found.suite is not None]


def list_of(data: Data, base_dir: Path, *, tower: bool = False) -> list[Question]:
    """All items of a file or a package's source; empty for a generator. tower: whether the model sees
    pictures. Raises ConfigError."""
    if data.source is not None:
        return read_items(data.source, data, base_dir=base_dir, tower=tower)
    if data.generator is not None or data.environment is not None:
        return []
    file = read_file(data, base_dir=base_dir, tower=tower)
    if file.problems:
        raise ConfigError("\n".join(str(problem) for problem in file.problems))
    for problem in file.left_out:
        log.warning("row_left_out %s", problem)
    return file.questions


def suite_items(
    found: EvaluationSet, data: Data, base_dir: Path, seed: int, *, tower: bool
) -> SuiteItems:
    """All items of a suite's list, or enough draws of its generator. Raises ConfigError."""
    questions = list_of(data, base_dir, tower=tower)
    if (generator := data.generator) is not None:
        start = derive_seed(seed, "suite", found.name) % SUITE_SEEDS
        drawn = generated(generator, seed=start)
        questions = [drawn[i] for i in range(max(MIN_SCAN, SCAN_FACTOR * found.prompts))]
    if data.environment is not None:
        games = GameItems(data.environment)
        games.begin(range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + found.prompts))
        questions = [games[HELD_OUT_SEEDS + i] for i in range(found.prompts)]
        games.close()
    return SuiteItems(
        name=found.name,
        questions=questions,
        wanted=found.prompts,
        generated=data.generator is not None,
    )


def read_file(data: Data, *, base_dir: Path, tower: bool) -> JsonlFile:
    """The items of a file, and what is wrong with it. tower: whether the model sees pictures."""
    if data.preferences is not None:
        file = read_preferences(data.preferences, base_dir=base_dir)
    else:
        file = read_prompts(data, base_dir=base_dir, tower=tower)
    return file.without_bad_rows() if data.on_bad_row == "leave-out" else file
