"""What a dataset gives and what the model is asked: questions and the prompts made of them.

Called by the splits of each kind of dataset.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.spec.workload import Data
from rljob_runtime.task.data.template import fill
from rljob_runtime.task.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """fields: texts that a template may name, `question` among them. entry: the dataset's item as
    JSON (`entries.to_json`), for its own scorer. responses: those of a pair, the preferred one first."""

    fields: Mapping[str, str]
    answer: str
    entry: dict[str, Any]
    responses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """index: number of the item in its split. text: without the chat template. responses: token ids of a
    pair, with an end token each."""

    index: int
    text: str
    token_ids: list[int]
    answer: str
    entry: dict[str, Any]
    responses: tuple[list[int], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes prompts of questions: worked examples, template, chat template, tokens."""

    data: Data
    tokenizer: Tokenizer
    max_prompt_length: int
    examples: Sequence[Question] = ()
    max_response_length: int | None = None

    def question_text(self, question: Question) -> str:
        """The filled template: what makes two prompts the same one."""
        return fill(self.data.template, question.fields)

    def prompt(self, question: Question, *, index: int) -> Prompt | None:
        """The prompt, or None when it, or a response of its pair, is longer than the limit."""
        text = self._examples_text() + self.question_text(question)
        ids = self.tokenizer.chat(text) if self.data.chat else self.tokenizer.encode(text)
        responses = tuple(
            [*self.tokenizer.continuation(response), self.tokenizer.eos_ids[0]]
            for response in question.responses
        )
        longest = max(map(len, responses), default=0)
        if len(ids) > self.max_prompt_length or longest > (self.max_response_length or longest):
            return None
        return Prompt(
            index=index,
            text=text,
            token_ids=ids,
            answer=question.answer,
            entry=question.entry,
            responses=responses,
        )

    def _examples_text(self) -> str:
        if self.data.few_shot is None:
            return ""
        separator = self.data.few_shot.separator
        return "".join(
            f"{self.question_text(example)}{answer_text(self.data, example.answer)}{separator}"
            for example in self.examples
        )


def answer_text(data: Data, answer: str) -> str:
    """The answer as it follows the template: after a space, unless the template ends in one."""
    return answer if data.template[-1].isspace() else f" {answer}"
