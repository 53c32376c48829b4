"""A tokenizer of words with a chat template, as a model's directory has it."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def save_chat_tokenizer(folder: Path, signs: Sequence[str], *, template: str = TEMPLATE) -> None:
    """Write it. signs: words by their ids, with <unk> and <end>."""
    words = Tokenizer(WordLevel({sign: i for i, sign in enumerate(signs)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>")
    fast.chat_template = template
    fast.save_pretrained(folder)
