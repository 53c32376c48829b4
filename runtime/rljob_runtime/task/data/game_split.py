"""Training games and held-out games of an environment: two ranges of seeds.

Games of different seeds may begin with the same text, so that seeds tell them apart, and not texts as
elsewhere. Prompts that are too long are left out of both.
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
    LeftOut,
    MakePromptMaker,
    SuiteItems,
    no_prompts,
)


class GameSplit:
    """A `Split` by seeds: those from 0 on train, those from HELD_OUT_SEEDS on are held out."""

    def __init__(
        self, environment: Environment, data: Data, make_maker: MakePromptMaker, *, held_out: int
    ) -> None:
        self.size = data.train_size
        self.left_out = LeftOut()
        self._maker, self._items = make_maker([]), GameItems(environment)
        self._items.begin(range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + held_out))
        scan = max(MIN_SCAN, SCAN_FACTOR * held_out)
        drawn = (self._items[HELD_OUT_SEEDS + i] for i in range(scan))
        self.held_out = self._first(drawn, held_out)

    def train(self, index: int, *, draw: int = 0) -> Prompt:
        """The game of this seed, or of the first one `size` further on whose prompt is not too long."""
        for place in range(
            index, min(index + MAX_REPLACEMENTS * self.size, HELD_OUT_SEEDS), self.size
        ):
            prompt = self._maker.prompt(self._items[place], index=index)
            if prompt is not None:
                return prompt
            self.left_out.too_long.add(place)
        raise ConfigError(no_prompts(self._maker, f"{MAX_REPLACEMENTS} games in a row"))

    def begin(self, indices: Sequence[int]) -> None:
        """Begin these training games at once, before they are asked for one by one. Raises ConfigError."""
        self._items.begin(indices)

    def hold_out(self, questions: SuiteItems) -> list[Prompt]:
        """Games of a suite. Raises ConfigError for none."""
        return self._first(questions.questions, questions.wanted)

    def _first(self, questions: Iterable[Question], wanted: int) -> list[Prompt]:
        """So many prompts that are not too long. Raises ConfigError where none is."""
        found: list[Prompt] = []
        for question in questions:
            if len(found) == wanted:
                break
            prompt = self._maker.prompt(question, index=len(found))
            found += [prompt] if prompt is not None else []
        if wanted and not found:
            raise ConfigError(
                f"all first observations are longer than {self._maker.max_prompt_length} tokens "
                "(spec.batch.maxPromptLength): no game can be held out; raise it"
            )
        return found
