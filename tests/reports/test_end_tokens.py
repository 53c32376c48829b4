"""With several end tokens DPO taught the smallest id, not the one that a turn ends in; and a tokenizer that
appends its end token to texts had the model answer after the end."""

import json
from pathlib import Path

import pytest
from chat_tokenizer import save_chat_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from rljob_api.spec.workload import Data
from rljob_runtime.task.data.question import PromptMaker, Question
from rljob_runtime.task.tokenizer import HFTokenizer

WORDS = {"<unk>": 0, "<text-end>": 1, "hi": 2, "yes": 3, "no": 4, "<begin>": 5, "<turn-end>": 6}


def tokenizer(folder: Path, *, eos: str, appends: bool = False) -> HFTokenizer:
    """One of the words, for a model whose files name two end tokens."""
    words = Tokenizer(WordLevel(WORDS, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    if appends:
        words.post_processor = TemplateProcessing(
            single=f"<begin> $A {eos}", special_tokens=[("<begin>", 5), (eos, WORDS[eos])]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=eos, unk_token="<unk>")
    fast.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 6]}))
    return HFTokenizer(folder)


@pytest.mark.parametrize("eos", ["<text-end>", "<turn-end>"])
def test_the_responses_of_a_pair_end_in_the_tokenizers_own_end_token(
    tmp_path: Path, eos: str
) -> None:
    data = Data.model_validate({"preferences": {"path": "pairs.jsonl"}})
    maker = PromptMaker(data, tokenizer(tmp_path, eos=eos), max_prompt_length=9)

    prompt = maker.prompt(
        Question(fields={"question": "hi"}, answer="", entry={}, responses=("yes", "no")), index=0
    )

    assert prompt is not None
    assert prompt.responses == ([3, WORDS[eos]], [4, WORDS[eos]])


def test_an_answer_in_a_chat_template_ends_in_the_templates_end_token(tmp_path: Path) -> None:
    save_chat_tokenizer(tmp_path, ["<unk>", "<end>", "<user>", "<assistant>", "hi", "<other>"])
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [1, 5]}))
    loaded = HFTokenizer(tmp_path)
    loaded._tokenizer.eos_token = "<other>"

    assert (loaded.end_id(chat=True), loaded.end_id(chat=False)) == (1, 5)


def test_a_prompt_has_no_end_token_behind_it(tmp_path: Path) -> None:
    appending = tokenizer(tmp_path, eos="<text-end>", appends=True)

    assert appending.encode("hi") == [5, 2]
    assert appending.encode("hi <text-end>") == [5, 2, 1]
