"""Bytes as tokens, stop strings, and what is said when a directory has no tokenizer."""

import json
from pathlib import Path

import pytest
from chat_tokenizer import TEMPLATE, save_chat_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from rljob_runtime.errors import ConfigError
from rljob_runtime.task.tokenizer import (
    BOS_ID,
    EOS_ID,
    ByteTokenizer,
    HFTokenizer,
    cut_at_stop,
    load_tokenizer,
    make_stopped,
    opening,
    save_byte_tokenizer,
)


def test_bytes_are_their_own_ids_behind_a_begin_token() -> None:
    tokenizer = ByteTokenizer()

    assert tokenizer.encode("aß") == [257, 97, 0xC3, 0x9F]
    assert tokenizer.continuation("a") == [97]
    assert tokenizer.decode([257, 97, 0xC3, 0x9F, 258, 256]) == "aß"
    assert tokenizer.decode([0xC3]) == "\ufffd"


def test_what_somebody_else_wrote_has_no_special_tokens(tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"<unk>": 0, "<end>": 1, "a": 2, "b": 3}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>")
    fast.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    tokenizer = load_tokenizer(tmp_path)

    assert tokenizer.continuation("a <end> b") == [2, 1, 3]
    assert tokenizer.plain("a <end> b") == [2, 3]
    assert ByteTokenizer().plain("a") == [97]


SIGNS = ["<unk>", "<end>", "<user>", "<assistant>", "hi", "move", "seen"]


def chat_tokenizer(folder: Path, template: str = TEMPLATE) -> HFTokenizer:
    save_chat_tokenizer(folder, SIGNS, template=template)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    return HFTokenizer(folder)


@pytest.mark.parametrize("ended", [True, False])
def test_turns_in_the_chat_template_are_those_of_the_whole_conversation(
    tmp_path: Path, ended: bool
) -> None:
    tokenizer = chat_tokenizer(tmp_path)
    drawn = tokenizer.continuation("move" + " <end>" * ended)

    before, after = tokenizer.between_turns(ended=ended)

    whole = "<user> hi <end> <assistant> move <end> <user> seen <end> <assistant>"
    put = [*before, *tokenizer.plain("seen"), *after]
    assert tokenizer.chat("hi") + drawn + put == tokenizer.continuation(whole)


def test_a_template_that_forgets_what_was_answered_has_no_turns(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(tmp_path, "{{ messages[-1].content }} <assistant> ")

    with pytest.raises(ConfigError, match=r"leaves out an answer or the message behind it"):
        tokenizer.between_turns(ended=True)
    with pytest.raises(ConfigError, match=r"spec\.data\.chat"):
        ByteTokenizer().between_turns(ended=True)


@pytest.mark.parametrize("ended", [True, False])
def test_an_agent_s_messages_behind_an_answer_are_those_of_the_whole_conversation(
    tmp_path: Path, ended: bool
) -> None:
    tokenizer = chat_tokenizer(tmp_path)
    hi, seen = {"role": "user", "content": "hi"}, {"role": "user", "content": "seen"}
    drawn = tokenizer.continuation("move" + " <end>" * ended)

    found = [
        *tokenizer.conversation([hi], []),
        *drawn,
        *tokenizer.behind_answer([seen, seen], [], ended=ended),
    ]

    said = {"role": "assistant", "content": "move"}
    assert found == tokenizer.conversation([hi, said, seen, seen], [])
    assert opening(tokenizer) == tokenizer.continuation("<user>")


def test_bytes_are_a_conversation_as_they_are() -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    assert ByteTokenizer().conversation(said, []) == [BOS_ID, 97, 98, EOS_ID]
    assert ByteTokenizer().behind_answer([said[0]], [], ended=True) == [97]
    assert opening(ByteTokenizer()) == [BOS_ID]


def test_a_template_that_an_agent_cannot_have_is_named(tmp_path: Path) -> None:
    refusing = chat_tokenizer(tmp_path, "{{ raise_exception('users alone') }}")

    with pytest.raises(ConfigError, match="refuses these messages: users alone"):
        opening(refusing)


def test_bytes_have_no_chat_template() -> None:
    with pytest.raises(ConfigError, match=r"spec\.data\.chat"):
        ByteTokenizer().chat("hello")


def test_the_marker_of_a_directory_names_its_tokenizer(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path)
    assert isinstance(load_tokenizer(tmp_path), ByteTokenizer)

    (tmp_path / "rljob_tokenizer.json").write_text(json.dumps({"type": "bite"}))
    with pytest.raises(ConfigError, match="'bite'"):
        load_tokenizer(tmp_path)


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("tokenizer.json", "{", "holds no tokenizer that transformers can read"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": 1}}', "holds no tokenizer"),
        ("config.json", '{"eos_token_id": ["x"]}', "config.json: eos_token_id is 'x'; must be"),
        ("generation_config.json", "[" * 5000, "generation_config.json cannot be read: recursion"),
    ],
)
def test_a_tokenizer_s_file_that_was_spoiled_is_named(
    tmp_path: Path, name: str, content: str, told: str
) -> None:
    chat_tokenizer(tmp_path, TEMPLATE)
    (tmp_path / name).write_text(content)

    with pytest.raises(ConfigError, match=told):
        load_tokenizer(tmp_path)


def test_a_stop_string_ends_the_response_with_the_token_that_completes_it() -> None:
    tokenizer = ByteTokenizer()
    stopped = make_stopped(tokenizer, ["\n", "END"])
    ids = tokenizer.continuation("12 E EN END")

    lengths = [n for n in range(1, len(ids) + 1) if stopped(ids[:n])]

    assert lengths == [len(ids)]
    assert stopped(tokenizer.continuation("7\n"))


def test_a_long_response_is_looked_at_from_its_end() -> None:
    stopped = make_stopped(ByteTokenizer(), ["ß!"])

    assert stopped(list(("x" * 500 + "ß!").encode()))
    assert not stopped(list(("ß" * 500).encode()))


@pytest.mark.parametrize(
    ("text", "kept"), [("7\n8", "7"), ("7", "7"), ("\n7", ""), ("a; b\n", "a"), ("", "")]
)
def test_text_is_cut_before_the_first_stop_string(text: str, kept: str) -> None:
    assert cut_at_stop(text, ["\n", "; "]) == kept
