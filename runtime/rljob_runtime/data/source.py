"""The prompts of a run: what each training step asks, and what evaluation asks.

Pure functions of (seed, step): a resumed run asks the same as one that was never stopped. Called by
the prompt feeder and by the warm-up of `tiny`.
"""

from collections.abc import Sequence
from pathlib import Path

from rljob_api.workload import Batch, Data
from rljob_runtime.data.items import read_items
from rljob_runtime.data.jsonl import read_jsonl
from rljob_runtime.data.order import permute
from rljob_runtime.data.question import Prompt, PromptMaker, Question
from rljob_runtime.data.split import GymSplit, ListSplit, Split
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.tokenizer import Tokenizer
from rljob_runtime.seeds import derive_seed

__all__ = ["Prompt", "PromptSource"]


class PromptSource:
    """All prompts of a run; held_out: how many prompts evaluation asks for, 0 without one."""

    def __init__(
        self,
        data: Data,
        *,
        batch: Batch,
        tokenizer: Tokenizer,
        seed: int,
        base_dir: Path,
        held_out: int = 0,
    ) -> None:
        self._batch, self._seed, self._asked = batch, seed, held_out

        def make_maker(examples: Sequence[Question]) -> PromptMaker:
            return PromptMaker(data, tokenizer, batch.max_prompt_length, examples)

        self._split: Split
        if data.reasoning_gym is not None:
            self._split = GymSplit(
                data.reasoning_gym, data, make_maker, held_out=held_out, seed=seed
            )
            return
        if data.source is not None:
            questions = read_items(data.source, base_dir=base_dir)
        else:
            assert data.jsonl is not None, "the rules allow exactly one source of data"
            file = read_jsonl(data.jsonl, base_dir=base_dir)
            if file.problems:
                raise ConfigError("\n".join(str(problem) for problem in file.problems))
            questions = file.questions
        self._split = ListSplit(questions, data, make_maker, held_out=held_out, seed=seed)

    def train(self, step: int) -> list[Prompt]:
        """The prompts of a training step, globalBatchSize of them; steps count from 1."""
        return self.draw("train", step, self._batch.global_batch_size)

    def train_at(self, positions: Sequence[int]) -> list[Prompt]:
        """The prompts at these places of the training stream: step s asks those from (s − 1) ×
        globalBatchSize on."""
        return [self._at("train", position) for position in positions]

    def draw(self, stream: str, step: int, num_prompts: int) -> list[Prompt]:
        """A batch of training items in an order of the stream's own.

        Each pass over the items goes through all of them once, in another order.
        """
        first = (step - 1) * num_prompts
        return [self._at(stream, position) for position in range(first, first + num_prompts)]

    def heldout(self) -> list[Prompt]:
        """The prompts of every evaluation; training has none of their texts."""
        return list(self._split.held_out)

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

    def _at(self, stream: str, position: int) -> Prompt:
        epoch, place = divmod(position, self._split.size)
        seed = derive_seed(self._seed, "order", stream, epoch)
        return self._split.train(permute(place, size=self._split.size, seed=seed))
