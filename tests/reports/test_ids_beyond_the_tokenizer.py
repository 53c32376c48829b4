"""A model whose vocabulary is padded beyond its tokenizer's drew ids that have no text."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from whole_runs import SMALL_JOB, Finished, run

from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.tiny_recipe import CONFIG
from rljob_runtime.models.weights import save_hf
from rljob_runtime.task.tokenizer import BYTE_VOCABULARY, load_tokenizer, save_byte_tokenizer

PADDED = 4 * BYTE_VOCABULARY


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Finished]:
    """trained(update={...}): two steps of a model that knows nothing, and would draw each id as often."""

    def trained(**spec: object) -> Finished:
        config = CONFIG | {"vocab_size": PADDED}
        decoder = Decoder(read_architecture(config))
        decoder.initialize(1)
        save_hf(decoder.named_hf_parameters(), folder=tmp_path / "model", config=config)
        save_byte_tokenizer(tmp_path / "model")
        small = {**SMALL_JOB["spec"], "steps": 2, "model": {"path": "model"}, **spec}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({**SMALL_JOB, "spec": small}))
        return run(tmp_path / "job.yaml", tmp_path / "run")

    return trained


CASES = {
    "one device a model": {},
    "two devices a model": {
        "update": {"parallelism": {"tensor": 2}}, "rollout": {"parallelism": {"tensor": 2}},
    },
}  # fmt: skip
MEGATRON = pytest.param(
    {"update": {"engine": "megatron"}}, id="Megatron's layers", marks=pytest.mark.nightly
)


@pytest.mark.parametrize(
    "spec", [*(pytest.param(spec, id=name) for name, spec in CASES.items()), MEGATRON]
)
def test_all_tokens_have_a_text_and_probabilities_are_those_among_them(trained, spec) -> None:
    if "engine" in spec.get("update", {}):
        pytest.importorskip("megatron.core")

    finished = trained(**spec, algorithm={"params": {"klCoefficient": 0.1}})

    assert finished.code == 0, finished.output
    for step in finished.of_kind("step"):
        shown = [r["tokens"]["ids"] for g in step["samples"] for r in g["responses"]]
        assert max(map(max, shown)) < BYTE_VOCABULARY
        assert step["metrics"]["entropy"] < math.log(BYTE_VOCABULARY)
        assert step["metrics"]["mismatch/max"] < 1e-4
    assert finished.of_kind("step")[0]["metrics"]["kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_tokenizer_whose_ids_have_gaps_has_its_last_one(tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"<end>": 0, "a": 1, "b": 9}, unk_token="<end>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(tmp_path)

    assert load_tokenizer(tmp_path).vocab_size == 10
