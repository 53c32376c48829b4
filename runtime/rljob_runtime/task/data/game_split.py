"""Split an environment into training games and held-out games: two ranges of seeds.

Games of different seeds may begin with the same text, so seeds identify them, and not texts as elsewhere.
Prompts that are too long are omitted from both.
"""

from collections.abc import Iterable, Sequence

from rljob_api.spec.environment import Environment
from rljob_api.spec.workload import Data
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.data.games import GameItems
from rljob_runtime.task.data.question import Prompt, Question
from rljob_runtime.task.data.split import (
    HELD_OUT_SEEDS,
    MAX_REPLACEMENTS,
    MIN_SCAN,
    SCAN_FACTOR,
    DroppedItems,
    MakePromptMaker,
    SuiteItems,
    no_prompts,
)


class GameSplit:
    """A `Split` by seeds: those from 0 on are for training, those from HELD_OUT_SEEDS on are held out."""

    def __init__(
        self, environment: Environment, data: Data, make_maker: MakePromptMaker, *, held_out: int
    ) -> None:
        self.size = data.train_size
        self.left_out = DroppedItems()
        self._maker, self._items = make_maker([]), GameItems(environment)
        self._items.begin(range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + held_out))
        scan = max(MIN_SCAN, SCAN_FACTOR * held_out)
        drawn = (self._items[HELD_OUT_SEEDS + i] for i in range(scan))
        self.held_out = self._first(drawn, held_out)

    def train(self, index: int, *, draw: int = 0) -> Prompt:
        """Return the game of this seed, or of the first one `size` further on whose prompt is not too
        long."""
        for seed in range(
            index, min(index + MAX_REPLACEMENTS * self.size, HELD_OUT_SEEDS), self.size
        ):
            prompt = self._maker.prompt(self._items[seed], index=index)
            if prompt is not None:
                return prompt
            self.left_out.too_long.add(seed)
        raise ConfigError(no_prompts(self._maker, f"{MAX_REPLACEMENTS} games in a row"))

    def begin(self, indices: Sequence[int]) -> None:
        """Begin these training games together, before they are requested one by one. Raises
        ConfigError."""
        self._items.begin(indices)

    def hold_out(self, questions: SuiteItems) -> list[Prompt]:
        """Return the games of a suite. Raises ConfigError if there are none."""
        return self._first(questions.questions, questions.num_prompts)

    def _first(self, questions: Iterable[Question], num_prompts: int) -> list[Prompt]:
        """Return the first prompts that are not too long, `num_prompts` of them. Raises ConfigError if
        there are none."""
        prompts: list[Prompt] = []
        for question in questions:
            if len(prompts) == num_prompts:
                break
            prompt = self._maker.prompt(question, index=len(prompts))
            prompts += [prompt] if prompt is not None else []
        if num_prompts and not prompts:
            raise ConfigError(
                f"all first observations are longer than {self._maker.max_prompt_length} tokens "
                "(spec.batch.maxPromptLength): no game can be held out; raise it"
            )
        return prompts
