"""Convert text to token ids and back: bytes for the built-in `tiny`, Hugging Face tokenizers for other
models.

The data source encodes each prompt once, and responses are decoded once for the rewards; everything
between moves token ids. Stop strings are handled here because they are defined on text.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from rljob_api.model.vision import language_part
from rljob_api.spec.json_text import read_json
from rljob_api.spec.messages import show
from rljob_runtime.errors import ConfigError

MARKER = "rljob_tokenizer.json"
NUM_BYTES = 256
PAD_ID, BOS_ID, EOS_ID = 256, 257, 258
SPECIAL_NAMES = {PAD_ID: "<pad>", BOS_ID: "<bos>", EOS_ID: "<eos>"}
BYTE_VOCABULARY = 259
PICTURE_NAMES = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
PICTURE_VOCABULARY = BYTE_VOCABULARY + len(PICTURE_NAMES)
MAX_BYTES_OF_CHARACTER = 4
Message = Mapping[str, Any]
ANSWER, MESSAGE = "rljob-answer", "rljob-message"
"""Placeholders for messages when a chat template is examined."""
CUT = "..."


class Tokenizer(Protocol):
    """The interface of a tokenizer for data, rollout and rewards."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Return the tokens that end a response."""
        ...

    def end_id(self, *, chat: bool) -> int:
        """Return the one of `eos_ids` that ends a response which is written, not drawn. chat: whether
        it is an answer in the chat template."""
        ...

    @property
    def vocab_size(self) -> int:
        """Return the number above the largest id."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, with the tokens that the model expects in front."""
        ...

    def continuation(self, text: str) -> list[int]:
        """Return the ids of text that follows a prompt, without tokens in front and without an end
        token."""
        ...

    def plain(self, text: str) -> list[int]:
        """Return the ids of foreign text, like `continuation`; names of special tokens in it are
        encoded as text."""
        ...

    def chat(self, text: str) -> list[int]:
        """Return the ids of a user's message in the chat template, up to the start of the answer."""
        ...

    def between_turns(self, *, ended: bool) -> tuple[list[int], list[int]]:
        """Return the ids of the chat template between two answers: before and after a user's message.
        ended: whether an end token was drawn already."""
        ...

    def conversation(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """Return the ids of an agent's messages (`chat_request`) in the chat template, up to the start
        of the answer. Raises ConfigError if the template does not accept them."""
        ...

    def behind_answer(
        self, messages: Sequence[Message], tools: Sequence[Message], *, ended: bool
    ) -> list[int]:
        """Return the ids of messages that follow a drawn answer, up to the start of the next answer.
        ended: the same as for `between_turns`. Raises ConfigError like `conversation`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; special tokens have none."""
        ...

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token alone; special tokens give their names."""
        ...


class ByteTokenizer:
    """Tokenizer for the UTF-8 bytes 0..255, followed by pad, begin and end."""

    eos_ids: tuple[int, ...] = (EOS_ID,)
    vocab_size: int = BYTE_VOCABULARY

    def end_id(self, *, chat: bool) -> int:
        """Return the end token for both kinds of response."""
        return EOS_ID

    def encode(self, text: str) -> list[int]:
        """Return a begin token and the text's bytes."""
        return [BOS_ID, *text.encode()]

    def continuation(self, text: str) -> list[int]:
        """Return the bytes of the text."""
        return list(text.encode())

    def plain(self, text: str) -> list[int]:
        """Return the bytes of the text, which are never special."""
        return self.continuation(text)

    def chat(self, text: str) -> list[int]:
        """Raise ConfigError, since bytes have no chat template."""
        raise ConfigError(
            "spec.data.chat is true, but the model's byte tokenizer has no chat template; "
            "set it to false, or name a chat model in spec.model"
        )

    def between_turns(self, *, ended: bool) -> tuple[list[int], list[int]]:
        """Raise ConfigError, since bytes have no chat template."""
        return self.chat(""), []

    def conversation(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """Return a begin token and the unchanged messages one after the other, with an end token after
        each of the assistant's. Tools are ignored."""
        return [BOS_ID, *self.behind_answer(messages, tools, ended=True)]

    def behind_answer(
        self, messages: Sequence[Message], tools: Sequence[Message], *, ended: bool
    ) -> list[int]:
        """Return the ids of the unchanged messages."""
        ids: list[int] = []
        for message in messages:
            ids += self.continuation(message["content"])
            if message["role"] == "assistant":
                ids.append(EOS_ID)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the bytes; invalid UTF-8 gives U+FFFD."""
        return bytes(i for i in ids if i < NUM_BYTES).decode(errors="replace")

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token; a byte that is no character alone gives U+FFFD."""
        return [SPECIAL_NAMES.get(i) or self.decode([i]) for i in ids]


class PictureByteTokenizer(ByteTokenizer):
    """A ByteTokenizer with additional tokens for the pictures of a Qwen2.5-VL."""

    vocab_size: int = PICTURE_VOCABULARY
    _names = re.compile("(" + "|".join(map(re.escape, PICTURE_NAMES)) + ")")

    def encode(self, text: str) -> list[int]:
        """Return a begin token and the text's bytes; names of picture tokens become these tokens."""
        segments = self._names.split(text)
        return [
            BOS_ID,
            *(token for segment in segments for token in _picture_ids(segment) or segment.encode()),
        ]

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token like a ByteTokenizer, with the names of picture tokens."""
        names = dict(enumerate(PICTURE_NAMES, BYTE_VOCABULARY))
        return [names.get(i) or super(PictureByteTokenizer, self).texts([i])[0] for i in ids]


def _picture_ids(text: str) -> list[int]:
    """Return the token of this name; none for other texts."""
    return [BYTE_VOCABULARY + PICTURE_NAMES.index(text)] if text in PICTURE_NAMES else []


class HFTokenizer:
    """A tokenizer of the transformers package, read from a model's directory."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:  # its type depends on the damage
            raise ConfigError(
                f"{path} holds no tokenizer that transformers can read ({error}); "
                "save one there with save_pretrained"
            ) from error
        self._path = path
        self.vocab_size: int = max(self._tokenizer.get_vocab().values()) + 1  # ids may have gaps
        self.eos_ids: tuple[int, ...] = self._find_eos_ids()

    def end_id(self, *, chat: bool) -> int:
        """Return the token with which the chat template ends an answer. Otherwise return the
        tokenizer's own end token, or the first one that the model's files name."""
        if chat and self._tokenizer.chat_template:
            ends = [token for token in self._markers[0] if token in self.eos_ids]
            if ends:
                return ends[0]
        eos_id = self._tokenizer.eos_token_id
        return self.eos_ids[0] if eos_id is None else int(eos_id)

    def encode(self, text: str) -> list[int]:
        """Return the ids with the tokenizer's special tokens in front, but without the end token that
        some tokenizers append (`add_eos_token`), since the response continues the prompt."""
        ids = list(self._tokenizer.encode(text))
        return ids[:-1] if self._appends_end else ids

    @cached_property
    def _appends_end(self) -> bool:
        """Return whether the tokenizer appends an end token to every text."""
        return self._tokenizer.encode("-")[-1] in {*self.eos_ids} - {*self.continuation("-")}

    def continuation(self, text: str) -> list[int]:
        """Return the ids without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def plain(self, text: str) -> list[int]:
        """Return the ids without special tokens, even where the text names some."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        special = {*self._tokenizer.all_special_ids, *self.eos_ids}
        return [token for token in ids if token not in special]

    def chat(self, text: str) -> list[int]:
        """Return the ids of a user's message. Raises ConfigError if the tokenizer has no chat
        template."""
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"spec.data.chat is true, but the tokenizer of {self._path} has no chat template; "
                "set it to false, or add chat_template.jinja"
            )
        ids = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
        )
        return list(ids)

    def between_turns(self, *, ended: bool) -> tuple[list[int], list[int]]:
        """Return the ids around a user's message. Raises ConfigError for a chat template that omits a
        message."""
        before, after = self._markers
        ends = [index for index, token in enumerate(before) if token in self.eos_ids]
        return before[ends[0] + 1 :] if ended and ends else before, after

    @cached_property
    def _markers(self) -> tuple[list[int], list[int]]:
        """Return what the template writes between an answer and the next message, and after that
        message."""
        shown = [{"role": "user", "content": "-"}, {"role": "assistant", "content": ANSWER}]
        text = self._tokenizer.apply_chat_template(
            [*shown, {"role": "user", "content": MESSAGE}],
            tokenize=False,
            add_generation_prompt=True,
        )
        before, message, after = str(text).partition(ANSWER)[2].partition(MESSAGE)
        if not message:
            raise ConfigError(
                f"the chat template of {self._path} leaves out an answer or the message behind it, so that a "
                "game (spec.data.environment with data.chat) or an agent (spec.rollout.agent) has no turns; "
                "set data.chat to false, or use another template"
            )
        return self.continuation(before), self.continuation(after)

    def conversation(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """Return the ids of the full rendered template."""
        return self.continuation(self._templated(messages, tools))

    def behind_answer(
        self, messages: Sequence[Message], tools: Sequence[Message], *, ended: bool
    ) -> list[int]:
        """Return the ids of what the template writes after an answer's text."""
        shown = [{"role": "user", "content": "-"}, {"role": "assistant", "content": ANSWER}]
        _, answer, following = self._templated([*shown, *messages], tools).partition(ANSWER)
        if not answer:
            raise ConfigError(f"the chat template of {self._path} leaves out an earlier answer")
        ids, before = self.continuation(following), self._markers[0]
        ends = [index for index, token in enumerate(before) if token in self.eos_ids]
        return ids[ends[0] + 1 :] if ended and ends else ids

    def _templated(self, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of {self._path} has no chat template, in which an agent's messages are put "
                "(spec.rollout.agent); add chat_template.jinja"
            )
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # a template may raise any error
            raise ConfigError(
                f"the chat template of {self._path} refuses these messages: {error}"
            ) from error
        return str(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without special tokens; spaces are not changed."""
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token; a token that is no character alone gives U+FFFD."""
        return [str(self._tokenizer.decode([i], clean_up_tokenization_spaces=False)) for i in ids]

    def _find_eos_ids(self) -> tuple[int, ...]:
        ids = {self._tokenizer.eos_token_id}
        for name in ("generation_config.json", "config.json"):
            file = self._path / name
            named = (
                language_part(_read_object(file)).get("eos_token_id") if file.is_file() else None
            )
            several = named if isinstance(named, list) else [named]
            if wrong := [i for i in several if not isinstance(i, int | None)]:
                raise ConfigError(f"{file}: eos_token_id is {show(wrong[0])}; must be a token's id")
            ids.update(several)
        eos_ids = tuple(sorted(i for i in ids if i is not None))
        if not eos_ids:
            raise ConfigError(
                f"{self._path} names no end token; add eos_token_id to generation_config.json"
            )
        return eos_ids


BYTE_TOKENIZERS: dict[str, type[ByteTokenizer]] = {
    "byte": ByteTokenizer,
    "byte-pictures": PictureByteTokenizer,
}


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a model's directory. Raises ConfigError if there is none."""
    marker = path / MARKER
    if not marker.is_file():
        return HFTokenizer(path)
    kind = _read_object(marker).get("type")
    if not isinstance(kind, str) or kind not in BYTE_TOKENIZERS:
        known = " and ".join(map(repr, BYTE_TOKENIZERS))
        raise ConfigError(f"{marker}: type is {kind!r}; this version knows only {known}")
    return BYTE_TOKENIZERS[kind]()


def _read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises ConfigError if there is none."""
    try:
        content = read_json(file)
        if not isinstance(content, dict):
            raise ValueError(f"it is {show(content)}, no object")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; copy the model again") from error
    return content


def save_byte_tokenizer(folder: Path, *, pictures: bool = False) -> None:
    """Mark a model's directory as one with the byte tokenizer. pictures: whether it has picture
    tokens."""
    kind = "byte-pictures" if pictures else "byte"
    (folder / MARKER).write_text(json.dumps({"type": kind}) + "\n")


def opening(tokenizer: Tokenizer) -> list[int]:
    """Return the token that begins every conversation of an agent, which is the prompt of its sample.
    Raises ConfigError for a tokenizer without a chat template."""
    return tokenizer.conversation([{"role": "user", "content": "-"}], [])[:1]


def make_stopped(tokenizer: Tokenizer, stop: Sequence[str]) -> Callable[[list[int]], bool]:
    """Return a test of a response's ids, called after each token: whether a stop string has been
    completed in it.

    The test decodes only the last tokens, as many as the longest stop string has bytes, since a token
    with text has at least one byte.
    """
    tail = max(len(text.encode()) for text in stop) + MAX_BYTES_OF_CHARACTER

    def stopped(ids: list[int]) -> bool:
        text = tokenizer.decode(ids[-tail:])
        return any(string in text for string in stop)

    return stopped


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first stop string in it."""
    offsets = [offset for string in stop if (offset := text.find(string)) >= 0]
    return text[: min(offsets)] if offsets else text


def cut_to_fit(text: str, limit: int, ids_of: Callable[[str], list[int]]) -> list[int]:
    """Return at most `limit` ids of a text; shortened text ends in three dots. ids_of: encodes text
    including what surrounds it."""
    ids = ids_of(text)
    if len(ids) <= limit:
        return ids
    shortest, longest = 0, min(len(text), limit * MAX_BYTES_OF_CHARACTER * 8)
    while shortest < longest:  # the longest prefix that fits
        middle = -(-(shortest + longest) // 2)
        if len(ids_of(text[:middle] + CUT)) <= limit:
            shortest = middle
        else:
            longest = middle - 1
    return ids_of(text[:shortest] + CUT)[:limit]
