"""Prompts that are too easy or too difficult now are left out for a while, within bounds, and come back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from numpy.typing import NDArray
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.problems import InvalidJob
from rljob_api.topology.resolved import ResolvedJob, resolve
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.prompts import difficulty
from rljob_runtime.prompts.difficulty import Difficulty
from rljob_runtime.prompts.order import item_at
from rljob_runtime.prompts.passed_rows import PassedSamples, passed_mark
from rljob_runtime.samples.flow import PASSED
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.tokenizer import ByteTokenizer

SIZE, PROMPTS, SAMPLES = 16, 8, 4
Passes = Callable[[int], list[float]]
PAIRS = [(True, False), (False, False), (True, True), (False, True)]
"""Whether a sample passed, and whether a scorer failed."""
RIGHT, WRONG, MIXED = [1.0] * SAMPLES, [0.0] * SAMPLES, [1.0, 0.0, 0.0, 1.0]


@dataclass
class Report:
    """Of one reward worker."""

    prompts: list[int] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    failed: int = 0


def job_with(**changes: Any) -> ResolvedJob:
    spec = {**SMALL_JOB["spec"], **changes}
    data = {**SMALL_JOB["spec"]["data"], "trainSize": SIZE, "difficultyFilter": {}}
    made = {**spec, "data": {**data, **changes.get("data", {})}}
    return resolve(read_job({**SMALL_JOB, "spec": made}))


def filter_of(**chosen: Any) -> Difficulty:
    made = Difficulty.of(job_with(data={"difficultyFilter": chosen}).spec)
    assert made is not None
    made.size = SIZE
    return made


def asked(made: Difficulty, step: int) -> list[int]:
    """Items of a step."""
    return [item_at(p, size=SIZE, seed=made.seed) for p in made.draw(step)]


def learn(made: Difficulty, items: list[int], passes_of: Passes, *, failed: int = 0) -> None:
    """What two reward workers report, each of every other group."""
    reports = [Report(failed=failed), Report()]
    for place, item in enumerate(items):
        report = reports[place % 2]
        report.prompts += [place] * SAMPLES
        report.passes += passes_of(item)
    made.learn(reports)


def train(made: Difficulty, steps: int, passes_of: Passes, *, first: int = 1) -> list[list[int]]:
    """Items of each step."""
    found = []
    for step in range(first, first + steps):
        found.append(asked(made, step))
        learn(made, found[-1], passes_of)
    return found


def one_right_one_wrong(item: int) -> list[float]:
    return {3: RIGHT, 7: WRONG}.get(item, MIXED)


def test_an_item_that_was_alike_in_its_last_visits_rests_and_then_once_is_enough() -> None:
    made = filter_of(visits=2, restPasses=2)

    passes: dict[int, list[int]] = {item: [] for item in range(SIZE)}
    for step in range(1, 22):
        items = asked(made, step)
        for position, item in zip(made.drawn, items, strict=True):
            passes[item].append(position // SIZE)
        learn(made, items, one_right_one_wrong)

    for item, found in passes.items():
        regular = [0, 1, 4, 7, 10] if item in (3, 7) else list(range(11))
        assert [number for number in found if number < 11] == regular


def test_without_anything_to_leave_out_prompts_are_those_of_a_run_without_the_filter() -> None:
    made = filter_of()

    drawn = []
    for step in range(1, 7):
        drawn += made.draw(step)
        learn(made, asked(made, step), lambda item: MIXED)

    assert drawn == list(range(6 * PROMPTS))
    assert made.metrics()["difficulty/left_out"] == 0


@pytest.mark.parametrize(
    ("leave_out", "rest"), [("both", {3, 7}), ("all-right", {3}), ("all-wrong", {7})]
)
def test_only_what_is_chosen_is_left_out(leave_out: str, rest: set[int]) -> None:
    made = filter_of(leaveOut=leave_out, visits=1, restPasses=1000)

    train(made, 2, one_right_one_wrong)
    later = train(made, 10, one_right_one_wrong, first=3)

    assert {item for step in later for item in step} == set(range(SIZE)) - rest
    assert made.metrics() == {
        "difficulty/left_out": len(rest),
        "difficulty/all_right": len(rest & {3}),
        "difficulty/all_wrong": len(rest & {7}),
        "difficulty/passed_over": made.metrics()["difficulty/passed_over"],
    }


def test_one_visit_that_is_not_alike_begins_the_count_anew() -> None:
    made = filter_of(visits=2, restPasses=1000)
    course = iter([RIGHT, MIXED, RIGHT, WRONG, WRONG])

    steps = train(made, 14, lambda item: next(course) if item == 3 else MIXED)

    assert sum(3 in step for step in steps) == 5


def test_no_more_than_the_share_rests_however_easy_the_task() -> None:
    made = filter_of(visits=1, restPasses=1000, maxShare=0.5)

    steps = train(made, 20, lambda item: RIGHT)

    assert made.metrics()["difficulty/left_out"] == SIZE // 2
    assert {len(step) for step in steps} == {PROMPTS}
    assert made.metrics()["difficulty/passed_over"] >= SIZE // 2 - 1


def test_scorers_that_fail_leave_nothing_out_as_too_difficult() -> None:
    made = filter_of(visits=1)

    learn(made, asked(made, 1), lambda item: WRONG, failed=1)

    assert made.metrics()["difficulty/left_out"] == 0


def test_the_filter_learns_of_what_was_trained_on_though_no_reward_report_came() -> None:
    told, made = filter_of(visits=1), filter_of(visits=1)
    passes = [RIGHT, WRONG, MIXED]
    learn(told, asked(told, 1), lambda item: passes[item % 3])
    marks: dict[int, list[NDArray[Any]]] = {0: [], 1: []}
    rows: dict[int, list[Any]] = {0: [], 1: []}
    for place, item in enumerate(asked(made, 1)):
        for passed in passes[item % 3]:
            marks[place % 2].append(passed_mark(passed=passed > 0, failed=False))
            rows[place % 2].append(SimpleNamespace(group_index=place))
    reports = []
    for share in (0, 1):  # two ranks train on half of the prompts each, a third one shares theirs
        column = {PASSED: Ragged.from_rows(marks[share])}
        reports.append(PassedSamples())
        reports[-1].add(SimpleNamespace(read=lambda _, names, c=column: c), rows[share])  # type: ignore[arg-type]

    made.finish_step(
        [SimpleNamespace(passed=each, lineage=None) for each in [*reports, PassedSamples()]]
    )

    assert made.metrics()["difficulty/left_out"] > 0
    assert made.metrics() == told.metrics()
    assert sorted(made.known()) == sorted(told.known())


def test_a_scorer_that_failed_is_known_from_the_rows() -> None:
    column = {PASSED: Ragged.from_rows([passed_mark(passed=p, failed=f) for p, f in PAIRS])}
    passed = PassedSamples()

    passed.add(
        SimpleNamespace(read=lambda _, names: column),  # type: ignore[arg-type]
        [SimpleNamespace(group_index=0)] * len(PAIRS),  # type: ignore[list-item]
    )

    assert (passed.passes, passed.failed) == ([1.0, 0.0], 2)
    assert len(passed.prompts) == 2


def test_a_step_that_starts_over_asks_the_same_and_one_that_goes_on_from_a_checkpoint_too() -> None:
    def passes_of(item: int) -> list[float]:
        return [RIGHT, WRONG, MIXED][item % 3]

    whole, made = filter_of(), filter_of()
    steps = train(whole, 12, passes_of)
    train(made, 5, passes_of)

    assert made.draw(6) == made.draw(6)
    resumed = filter_of()
    resumed.first_new = made.first_new
    resumed.remember(made.known())

    assert train(resumed, 7, passes_of, first=6) == steps[5:]
    assert resumed.known() == whole.known()


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difficulty, "MOST_KNOWN", 5)
    made = filter_of(visits=3)

    (last,) = train(made, 1, lambda item: RIGHT)

    assert [key for key, _, _ in made.known()] == last[-5:]


def test_a_curriculum_goes_by_steps_and_each_level_is_learned_anew() -> None:
    gym = {
        "dataset": "spell_backward",
        "curriculum": {"levels": [0, 3], "stepsPerLevel": 4},
    }
    job = job_with(data={"reasoningGym": gym, "difficultyFilter": {"visits": 1, "maxShare": 0.5}})
    made = Difficulty.of(job.spec)
    assert made is not None
    made.size = SIZE
    source = PromptSource(
        job.spec.data,
        batch=job.spec.batch,
        tokenizer=ByteTokenizer(),
        seed=job.spec.seed,
        base_dir=Path(),
    )

    lengths, left_out, different = [], [], []
    for step in range(1, 7):
        prompts = source.train_at(made.draw(step), step=step)
        lengths.append({len(prompt.answer) for prompt in prompts})
        different.append(len(set(asked(made, step))))
        learn(made, asked(made, step), lambda item: RIGHT)
        left_out.append(made.metrics()["difficulty/left_out"])

    assert lengths == [{3}] * 4 + [{9}] * 2
    assert left_out == [SIZE // 2] * 4 + [different[4], SIZE // 2]  # none of the level before
    assert {key // SIZE for key, _, _ in made.known()} == {3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flow": {"mode": "async"}}, "which async draws ahead of"),
        ({"flow": {"partialRollout": {"budgetTokens": 4}}}, "goes on with open ones"),
        (
            {"algorithm": {"name": "dapo", "params": {"dynamicSampling": {}}}},
            "both choose a step's prompts",
        ),
        (
            {"batch": {**SMALL_JOB["spec"]["batch"], "samplesPerPrompt": 1}},
            "(spec.batch.samplesPerPrompt is 1)",
        ),
    ],
)
def test_a_filter_that_could_not_choose_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        job_with(**changes)

    found = {p.message for p in caught.value.problems if p.path == "spec.data.difficultyFilter"}
    assert [message in text for text in found] == [True]
