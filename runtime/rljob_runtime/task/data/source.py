"""Provide the prompts of a run: those of each training step, and those of evaluation.

Pure functions of (seed, step): a resumed run requests the same prompts as one that was never stopped.
Called by the prompt feeder and by the warm-up of `tiny`.
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
    """All prompts of a run. held_out: number of prompts of its own data that evaluation requests, 0
    without one. suites: the other evaluation sets.

    processor: that of a model that sees pictures. agent: whether an agent writes the messages; then the
    prompt is only the chat template's first token.
    """

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
        self._batch, self._seed, self._num_held_out = batch, seed, held_out
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
        self._split = self._make_split(data, make_maker, base_dir)
        self._held_out = {OWN_DATA: self._split.held_out}
        for evaluation_set in suites:
            assert evaluation_set.suite is not None, (
                "the job's own held-out prompts are in the split"
            )
            suite_data = evaluation_set.suite.data(data, evaluation_set.level)
            items = suite_items(evaluation_set, suite_data, base_dir, seed, tower=tower)
            self._held_out[evaluation_set.name] = self._split.hold_out(items)

    def _make_split(self, data: Data, make_maker: MakePromptMaker, base_dir: Path) -> Split:
        """Return the training items, held-out items and worked examples of the job's own data."""
        held_out, seed = self._num_held_out, self._seed
        if (generator := data.generator) is not None:
            return GeneratedSplit(generator, data, make_maker, held_out=held_out, seed=seed)
        if data.environment is not None:
            return GameSplit(data.environment, data, make_maker, held_out=held_out)
        questions = read_questions(data, base_dir, tower=self._tower)
        assert questions, "the rules allow exactly one source of data"
        return ListSplit(questions, data, make_maker, held_out=held_out, seed=seed)

    def train(self, step: int) -> list[Prompt]:
        """Return the prompts of a training step, globalBatchSize of them; steps count from 1."""
        return self.draw("train", step, self._batch.global_batch_size)

    def train_at(self, positions: Sequence[int], *, step: int | None = None) -> list[Prompt]:
        """Return the prompts at these positions of the training stream.

        Step s requests those from (s − 1) × globalBatchSize on. step: determines the curriculum's level
        instead of the positions' steps.
        """
        self._begin("train", positions)
        return [self._at("train", position, step=step) for position in positions]

    def draw(self, stream: str, step: int, num_prompts: int) -> list[Prompt]:
        """Return a batch of training items in an order specific to the stream.

        Each pass over the items visits all of them once, in another order.
        """
        first = (step - 1) * num_prompts
        positions = range(first, first + num_prompts)
        self._begin(stream, positions)
        return [self._at(stream, position) for position in positions]

    def heldout(self, name: str = OWN_DATA) -> list[Prompt]:
        """Return the prompts of a set for every evaluation; none of them is a training prompt. Raises
        PictureError if a picture cannot be decoded any more."""
        return [self._maker.load_pictures(prompt) for prompt in self._held_out[name]]

    def facts(self) -> dict[str, int]:
        """Return counts so far: what was held out, and what training dropped for which reason."""
        left_out = self._split.left_out
        return {
            "train_size": self._split.size,
            "held_out": len(self._split.held_out),
            "held_out_asked": self._num_held_out,
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
        step_of_position = position // self._batch.global_batch_size
        return self._split.train(index, draw=step_of_position if step is None else step - 1)


def suites_of(evaluation: Evaluation | None) -> list[EvaluationSet]:
    """Return the evaluation sets other than the job's own held-out prompts."""
    sets = evaluation.sets() if evaluation else ()
    return [each for each in sets if each.suite is not None]


def read_questions(data: Data, base_dir: Path, *, tower: bool = False) -> list[Question]:
    """Return all items of a file or a package's source; none for a generator. tower: whether the model
    sees pictures. Raises ConfigError."""
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
    evaluation_set: EvaluationSet, data: Data, base_dir: Path, seed: int, *, tower: bool
) -> SuiteItems:
    """Return all items of a suite's list, or enough draws of its generator. Raises ConfigError."""
    questions = read_questions(data, base_dir, tower=tower)
    if (generator := data.generator) is not None:
        start = derive_seed(seed, "suite", evaluation_set.name) % SUITE_SEEDS
        drawn = generated(generator, seed=start)
        questions = [drawn[i] for i in range(max(MIN_SCAN, SCAN_FACTOR * evaluation_set.prompts))]
    if data.environment is not None:
        games = GameItems(data.environment)
        games.begin(range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + evaluation_set.prompts))
        questions = [games[HELD_OUT_SEEDS + i] for i in range(evaluation_set.prompts)]
        games.close()
    return SuiteItems(
        name=evaluation_set.name,
        questions=questions,
        num_prompts=evaluation_set.prompts,
        generated=data.generator is not None,
    )


def read_file(data: Data, *, base_dir: Path, tower: bool) -> JsonlFile:
    """Read the items of a file, and what is wrong with it. tower: whether the model sees pictures."""
    if data.preferences is not None:
        file = read_preferences(data.preferences, base_dir=base_dir)
    else:
        file = read_prompts(data, base_dir=base_dir, tower=tower)
    return file.without_bad_rows() if data.on_bad_row == "leave-out" else file
