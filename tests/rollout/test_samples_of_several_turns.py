"""Samples that call tools: what is trained on is what was drawn and put, and nobody waits for a slow tool."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rollouts import make_groups, run, sampling
from syllables import ENDS, RESULT_CLOSE, RESULT_OPEN, Syllables
from tool_samples import CALC, Echo, Held, both_logprobs, how, turns_of

from rljob_runtime.errors import WorkerError
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.task.tools.call_format import CallFormat
from rljob_runtime.task.tools.tool_pool import ToolPool

SaveReference = Callable[..., tuple[Any, Path]]


def engine_of(path: Path, **changes: Any) -> TorchRollout:
    arguments: dict[str, Any] = {"dtype": torch.float32, "max_sequences": 7, "max_length": 64}
    return TorchRollout(path, **(arguments | changes))


@pytest.fixture
def model(save_reference: SaveReference) -> tuple[Any, Path]:
    return save_reference("qwen3")


def test_drawn_tokens_have_the_logprobs_that_training_finds_behind_the_answers(
    model: tuple[Any, Path],
) -> None:
    groups = make_groups()

    found = run(engine_of(model[1]), groups, how(Echo()))

    assert sum(len(sample.calls) for sample in found.values()) > 10
    trained, rolled = both_logprobs(model[1], groups, found)
    torch.testing.assert_close(trained, rolled, atol=1e-4, rtol=0)


def test_a_response_is_what_was_drawn_and_what_the_tool_answered_and_nothing_else(
    model: tuple[Any, Path],
) -> None:
    found = run(engine_of(model[1]), make_groups(), how(Echo()))

    answer = [RESULT_OPEN, 44, 44, RESULT_CLOSE]
    for sample in found.values():
        turns = turns_of(sample)
        put = len(sample.token_ids) - len(sample.logprobs)
        assert put == len(answer) * (len(turns) - 1)
        joined = turns[0] + [t for turn in turns[1:] for t in (*answer, *turn)]
        assert joined == sample.token_ids
        assert len(sample.logprobs) == sum(map(len, turns)) == len(sample.versions)
        for turn in turns[:-1]:
            text = Syllables().decode(turn)
            assert text.endswith("</calc>") and "<calc>" in text
        if sample.finish == "stop":
            assert sample.token_ids[-1] in ENDS


def test_a_sample_is_the_same_whatever_else_is_in_the_batch(model: tuple[Any, Path]) -> None:
    groups = make_groups()

    together = run(engine_of(model[1], max_sequences=20), groups, how(Echo()))
    alone = run(engine_of(model[1], max_sequences=1), groups, how(Echo()))

    assert {uid: s.token_ids for uid, s in together.items()} == {
        uid: s.token_ids for uid, s in alone.items()
    }


def test_samples_that_call_nothing_end_while_all_others_wait_for_a_slow_tool(
    model: tuple[Any, Path],
) -> None:
    pool, groups = Held(), make_groups()
    chunks = engine_of(model[1]).generate(groups, how(pool, turns=2))
    without = run(engine_of(model[1]), groups, sampling(eos_ids=ENDS, max_response_length=40))
    form = CallFormat(Syllables(), [CALC])  # type: ignore[arg-type]
    silent = {
        uid
        for uid, sample in without.items()
        if not any(form.call(sample.token_ids[:n]) for n in range(1, len(sample.token_ids) + 1))
    }
    assert silent and len(silent) < len(without)

    before = set()
    while before < silent:  # all of them before the first answer
        before |= {sample.uid for sample in next(chunks)}
    assert before == silent

    def answer_all() -> None:
        for _ in range(len(without) - len(silent)):
            pool.waiting.get(timeout=60)()

    thread = threading.Thread(target=answer_all)
    thread.start()
    after = {sample.uid for chunk in chunks for sample in chunk}
    thread.join(60)
    assert after == without.keys() - silent


def test_the_last_turn_ends_with_its_call(model: tuple[Any, Path]) -> None:
    found = run(engine_of(model[1]), make_groups(), how(Echo(), turns=2))

    cut = [sample for sample in found.values() if sample.finish == "turns"]
    assert cut
    for sample in cut:
        assert (sample.turns, len(sample.calls)) == (2, 1)
        assert Syllables().decode(sample.token_ids).endswith("</calc>")


def test_an_answer_without_room_ends_the_sample_and_is_left_out(model: tuple[Any, Path]) -> None:
    found = run(engine_of(model[1]), make_groups(), how(Echo(), max_response_length=8))

    for sample in found.values():
        assert len(sample.token_ids) <= 8
        assert sample.drawn[-1]
    assert any(s.finish == "length" and s.calls and s.turns == 1 for s in found.values())


def test_each_token_has_the_version_that_drew_it(model: tuple[Any, Path]) -> None:
    engine = engine_of(model[1])
    weights = {name: weight.clone() for name, weight in engine.slices().items()}
    seen = []

    def between() -> None:
        seen.append(None)
        if len(seen) in (12, 30):
            engine.load_weights(weights.items(), version=engine.version + 1)

    engine.between = between
    found = run(engine, make_groups(), how(Echo()))

    of_one = run(engine_of(model[1]), make_groups(), how(Echo()))
    mixed = [s for s in found.values() if s.turns > 1 and len(set(s.versions)) > 1]
    assert mixed
    for uid, sample in found.items():
        assert sample.token_ids == of_one[uid].token_ids
        assert sample.versions == sorted(sample.versions)
        assert sample.version == sample.versions[0]
        assert len(sample.versions) == len(sample.logprobs)


def test_text_stops_look_at_the_present_turn_alone(model: tuple[Any, Path]) -> None:
    letter = chr(RESULT_CLOSE)  # in every answer
    found = run(
        engine_of(model[1]),
        make_groups(),
        how(Echo(), stopped=lambda ids: letter in Syllables().decode(ids[-2:])),
    )

    several = [turns_of(sample) for sample in found.values() if sample.turns > 1]
    assert any(len(turns[-1]) > 1 for turns in several)


def test_the_calculator_answers_in_a_process_of_its_own(model: tuple[Any, Path]) -> None:
    pool = ToolPool([CALC])
    try:
        found = run(engine_of(model[1]), make_groups(), how(pool))
    finally:
        pool.close()

    calls = [call for sample in found.values() for call in sample.calls]
    assert {call.tool for call in calls} == {"calc"}
    assert {call.outcome for call in calls} <= {"ok", "error"}
    assert all(call.seconds > 0 for call in calls)


def test_calls_that_nobody_answers_are_an_error(model: tuple[Any, Path]) -> None:
    pool = Held()
    pool.most_seconds = lambda calls: 0.01  # type: ignore[method-assign]

    with pytest.raises(WorkerError, match=r"calls of tools \(spec.rollout.tools\) was answered in"):
        run(engine_of(model[1]), make_groups(), how(pool))
