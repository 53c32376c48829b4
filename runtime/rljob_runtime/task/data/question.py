"""Define a dataset's questions, and make the prompts for the model from them.

Called by the splits of each kind of dataset.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_api.spec.messages import show
from rljob_api.spec.workload import Data
from rljob_runtime.errors import ConfigError, PictureError
from rljob_runtime.task.data.template import fill
from rljob_runtime.task.pictures.picture import Pixels, RowPicture, pixels_of
from rljob_runtime.task.pictures.processor import PLACEHOLDER, PictureProcessor, placeholder_fault
from rljob_runtime.task.pictures.rows import pictures_of
from rljob_runtime.task.tokenizer import Tokenizer

log = logging.getLogger(__name__)

PICTURES_WITHOUT_VISION = (
    "has pictures ({key}), and this job is trained on text alone; set spec.model.vision: frozen for a model "
    "that sees them, or leave {key} out of the data"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of a dataset. fields: texts that a template may use, including `question`. entry: the
    dataset's item as JSON (`entries.to_json`), for its own scorer.

    responses: those of a pair, the preferred one first. pictures: in the order of their placeholders.
    """

    fields: Mapping[str, str]
    answer: str
    entry: dict[str, Any]
    responses: tuple[str, ...] = ()
    pictures: tuple[RowPicture, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt for the model. index: number of the item in its split. text: without the chat template.
    responses: token ids of a pair, each with an end token.

    pictures: those of worked examples, then its own; token_ids contain their tokens. scaled: the pictures
    in the model's size, once the prompt is requested.
    """

    index: int
    text: str
    token_ids: list[int]
    answer: str
    entry: dict[str, Any]
    responses: tuple[list[int], ...] = ()
    pictures: tuple[RowPicture, ...] = ()
    scaled: tuple[Pixels, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes prompts from questions: worked examples, template, chat template, tokens. processor: that
    of a model that sees pictures. opening: the token ids that replace each prompt's text, for agents."""

    data: Data
    tokenizer: Tokenizer
    max_prompt_length: int
    examples: Sequence[Question] = ()
    max_response_length: int | None = None
    processor: PictureProcessor | None = None
    opening: list[int] | None = None

    def question_text(self, question: Question) -> str:
        """Return the template filled with the question's fields."""
        return fill(self.data.template, question.fields)

    def key(self, question: Question) -> str:
        """Return what identifies a prompt: its text and pictures."""
        return "\0".join([self.question_text(question), *(p.key for p in question.pictures)])

    def prompt(self, question: Question, *, index: int) -> Prompt | None:
        """Return the prompt, or None if it, or a response of its pair, is longer than the limit."""
        text = self._examples_text() + self.question_text(question)
        questions = (*self.examples, question)
        shown = [picture for each in questions for picture in each.pictures]
        ids = self._ids(text, shown)
        end = self.tokenizer.end_id(chat=self.data.chat)
        responses = tuple(
            [*self.tokenizer.continuation(response), end] for response in question.responses
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
            pictures=tuple(shown),
        )

    def load_pictures(self, prompt: Prompt) -> Prompt:
        """Return the prompt with its pictures decoded and scaled. Raises PictureError."""
        if not prompt.pictures:
            return prompt
        assert self.processor is not None, "pictures without a model that sees them"
        scaled = [self.processor.scaled(pixels_of(picture)) for picture in prompt.pictures]
        return replace(prompt, scaled=tuple(scaled))

    def load_pictures_or_drop(self, prompt: Prompt) -> Prompt | None:
        """Return the prompt with its pictures, or None if one cannot be decoded and such rows are left
        out (spec.data.onBadRow)."""
        try:
            return self.load_pictures(prompt)
        except PictureError as error:
            if self.data.on_bad_row == "refuse":
                raise
            log.warning("row_left_out %s", error)
            return None

    def _ids(self, text: str, pictures: Sequence[RowPicture]) -> list[int]:
        """Return the ids of a text with pictures. Raises ConfigError if the text does not match the
        pictures."""
        if self.opening is not None:
            return self.opening
        encode = self.tokenizer.chat if self.data.chat else self.tokenizer.encode
        if self.processor is None:
            return encode(text)
        sizes = [picture.size for picture in pictures]
        try:
            return self.processor.ids(text, sizes, encode)
        except ConfigError as error:
            raise ConfigError(f"the prompt {show(text)}: {error}") from error

    def _examples_text(self) -> str:
        if self.data.few_shot is None:
            return ""
        separator = self.data.few_shot.separator
        return "".join(
            f"{self.question_text(example)}{answer_text(self.data, example.answer)}{separator}"
            for example in self.examples
        )


def answer_text(data: Data, answer: str) -> str:
    """Return the answer as it follows the template: after a space, unless the template ends in one."""
    return answer if data.template[-1].isspace() else f" {answer}"


def with_pictures(
    question: Question, data: Data, *, label: str, folder: Path, tower: bool
) -> Question | str:
    """Return the question with the pictures of its entry, or what is wrong with them.

    label: file and number of the row. folder: base of relative paths. tower: whether the model sees
    pictures; if not, `<image>` is text.
    """
    row, key = question.entry, data.shown.field
    if not tower:
        return (
            PICTURES_WITHOUT_VISION.format(key=key)
            if isinstance(row.get(key), list) and row[key]
            else question
        )
    try:
        pictures = pictures_of(row, key=key, label=label, folder=folder)
        if isinstance(pictures, str):
            return pictures
        num_placeholders = fill(data.template, question.fields).count(PLACEHOLDER)
    except PictureError as error:
        return error.fault
    except KeyError:  # reported as a problem of the template
        return question
    if num_placeholders != len(pictures):
        return placeholder_fault(num_placeholders, len(pictures))
    if data.shown.per_prompt is not None and num_placeholders > data.shown.per_prompt:
        most = f"{data.shown.per_prompt} (spec.data.images.perPrompt)"
        return f"has {num_placeholders} pictures, more than {most}; raise it, or show fewer"
    entry = {name: value for name, value in row.items() if name != key}
    return replace(question, pictures=pictures, entry=entry)
