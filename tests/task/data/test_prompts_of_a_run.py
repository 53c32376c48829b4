"""Which prompts a run trains on and which it holds out."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.workload import Batch, Data, ReasoningGymData
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.tokenizer import ByteTokenizer

WORDS: dict[str, Any] = {
    "reasoningGym": {"dataset": "spell_backward", "params": {"min_word_len": 3, "max_word_len": 4}},
    "template": "{word}=",
    "trainSize": 5000,
}
SUMS: dict[str, Any] = {
    "reasoningGym": {
        "dataset": "chain_sum",
        "params": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    },
    "template": "{expression} =",
}


def make_source(
    data: dict[str, Any],
    *,
    seed: int = 1,
    held_out: int = 64,
    prompts: int = 16,
    max_prompt_length: int = 100,
    base_dir: Path = Path(),
) -> PromptSource:
    batch = Batch(
        global_batch_size=prompts,
        samples_per_prompt=2,
        max_prompt_length=max_prompt_length,
        max_response_length=8,
    )
    return PromptSource(
        Data.model_validate(data),
        batch=batch,
        tokenizer=ByteTokenizer(),
        seed=seed,
        base_dir=base_dir,
        held_out=held_out,
    )


def write_lines(folder: Path, number: int) -> dict[str, Any]:
    lines = [json.dumps({"prompt": f"question {i}", "answer": str(i)}) for i in range(number)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    return {"jsonl": {"path": "data.jsonl"}}


def texts(source: PromptSource, steps: range) -> list[str]:
    return [prompt.text for step in steps for prompt in source.train(step)]


def test_a_step_is_the_same_whoever_asks_and_in_which_order() -> None:
    first, second = make_source(WORDS), make_source(WORDS)

    forward = [first.train(step) for step in (1, 2, 3)]
    backward = [second.train(step) for step in (3, 2, 1)]

    assert forward == backward[::-1]
    assert first.heldout() == second.heldout()
    assert texts(first, range(1, 4)) != texts(make_source(WORDS, seed=2), range(1, 4))


@pytest.mark.parametrize("data", [WORDS, SUMS])
def test_no_held_out_text_is_ever_trained_on(data: dict[str, Any]) -> None:
    source = make_source(data)

    trained = set(texts(source, range(1, 200)))
    warmed = {prompt.text for step in range(1, 50) for prompt in source.draw("warmup", step, 64)}
    held_out = [prompt.text for prompt in source.heldout()]

    assert len(set(held_out)) == len(held_out) > 0
    assert not set(held_out) & (trained | warmed)
    assert source.facts()["left_out_held_out"] > 0


def test_nearby_seeds_do_not_share_their_held_out_prompts_with_training() -> None:
    held_out = {prompt.text for prompt in make_source(WORDS, seed=1, held_out=128).heldout()}
    other = {prompt.text for prompt in make_source(WORDS, seed=2, held_out=128).heldout()}

    assert len(held_out & other) < 20


def test_a_small_dataset_keeps_most_of_its_prompts_for_training() -> None:
    source = make_source(SUMS, held_out=512)
    facts = source.facts()

    assert facts["held_out_asked"] == 512
    assert facts["held_out"] == 50  # a quarter of a + b and a - b with digits 0 to 9
    assert len(set(texts(source, range(1, 100)))) == 150


def test_too_long_prompts_are_replaced_and_counted() -> None:
    source = make_source(WORDS, max_prompt_length=5)  # begin token, 3 letters, "="

    prompts = [prompt for step in range(1, 6) for prompt in source.train(step)]

    assert len(prompts) == 5 * 16
    assert all(len(prompt.token_ids) == 5 for prompt in prompts + source.heldout())
    assert source.facts()["left_out_too_long"] > 20
    assert source.train(2) == make_source(WORDS, max_prompt_length=5).train(2)


def test_prompts_that_are_all_too_long_are_told_before_training() -> None:
    with pytest.raises(ConfigError, match=r"maxPromptLength"):
        make_source(WORDS, max_prompt_length=3)
    with pytest.raises(ConfigError, match=r"200 items in a row.*maxPromptLength"):
        make_source(WORDS, max_prompt_length=3, held_out=0).train(1)


def test_a_pass_over_a_file_takes_each_line_once(tmp_path: Path) -> None:
    data = write_lines(tmp_path, 100)
    source = make_source(data, prompts=10, held_out=20, base_dir=tmp_path)

    first, second = texts(source, range(1, 9)), texts(source, range(9, 17))

    held_out = {prompt.text for prompt in source.heldout()}
    assert len(held_out) == 20
    assert Counter(first) == Counter(second) == Counter(set(first))
    assert set(first) == {f"question {i}" for i in range(100)} - held_out
    assert first != second


def test_a_file_of_three_lines_holds_nothing_out(tmp_path: Path) -> None:
    data = write_lines(tmp_path, 3)

    with pytest.raises(ConfigError, match=r"too few to hold prompts out for spec\.evaluation"):
        make_source(data, held_out=1, base_dir=tmp_path)
    assert len(make_source(data, held_out=0, base_dir=tmp_path).train(1)) == 16


def test_the_same_worked_examples_stand_before_every_prompt() -> None:
    few_shot = {**SUMS, "fewShot": {"examples": 3, "separator": "\n"}}
    source = make_source(few_shot)
    plain = make_source(SUMS)

    prompts = [p for step in range(1, 60) for p in source.train(step)] + source.heldout()
    shared = {prompt.text.rsplit("\n", 1)[0] for prompt in prompts}
    (examples,) = shared

    lines = examples.split("\n")
    asked = {prompt.text.rsplit("\n", 1)[1] for prompt in prompts}
    assert len(lines) == 3
    for line in lines:
        question, answer = line.split(" = ")
        assert eval(question) == int(answer)
        assert f"{question} =" not in asked
    assert all(text.endswith(" =") for text in texts(plain, range(1, 3)))


def test_more_worked_examples_than_questions_are_refused(tmp_path: Path) -> None:
    data = {**write_lines(tmp_path, 3), "fewShot": {"examples": 4}}

    with pytest.raises(ConfigError, match=r"fewShot\.examples is 4.*only 3"):
        make_source(data, held_out=0, base_dir=tmp_path)


def test_a_scorer_gets_the_item_that_was_asked() -> None:
    prompt = make_source(WORDS).train(1)[0]

    assert prompt.entry["answer"] == prompt.answer
    assert prompt.text == f"{prompt.answer[::-1]}="
    assert json.loads(json.dumps(prompt.entry)) == prompt.entry


@pytest.mark.parametrize("dataset", ["acre", "gsm_symbolic", "list_functions", "word_ladder"])
def test_datasets_that_make_their_items_at_once_come_in_parts(dataset: str) -> None:
    from rljob_runtime.task.data.gym import GymItems

    items = GymItems(ReasoningGymData(dataset=dataset), seed=7)

    questions = {items[i].fields["question"] for i in (0, 999, 1000, 2001)}

    assert len(questions) == 4
