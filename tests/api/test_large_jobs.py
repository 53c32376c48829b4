"""What is long belongs into a file: a large spec is refused by the path of what makes it large."""

import copy
import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.check.load import read_job
from rljob_api.check.size import MAX_SPEC_BYTES, size_problem
from rljob_api.spec.problems import InvalidJob

JOB: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "examples/quickstart.yaml").read_text()
)


def with_params(**params: object) -> dict[str, Any]:
    job = copy.deepcopy(JOB)
    job["spec"]["data"]["reasoningGym"]["params"] = params
    return job


def test_the_part_that_makes_a_spec_too_large_is_named_with_the_limit() -> None:
    with pytest.raises(InvalidJob) as refused:
        read_job(with_params(short=1, long=[0] * 700_000))

    (problem,) = refused.value.problems
    assert problem.path == "spec.data.reasoningGym.params.long"
    assert problem.message.startswith("takes 1400001 of the spec's 1400")
    assert "131072 is the limit; put what is long into a file" in problem.message


def test_of_many_small_parts_what_holds_them_is_named() -> None:
    problem = size_problem(with_params(**{f"p{n}": "a" * 100 for n in range(2000)}))

    assert problem is not None
    assert problem.path == "spec.data.reasoningGym.params"


def test_a_spec_of_the_largest_size_passes() -> None:
    room = MAX_SPEC_BYTES - len(yaml.safe_dump(JOB["spec"]))

    assert size_problem(with_params(p="a" * (room - 2000))) is None
    assert size_problem(with_params(p="a" * MAX_SPEC_BYTES)) is not None


ODD: dict[str, object] = {
    "nothing": None,
    "a number": 3,
    "a list": [],
    "more digits than Python writes": {"a": 10**5000},
    "a key that is no text": {(1, 2): 3},
    "a date": {"a": datetime.date(2026, 1, 1)},
    "half a character": {"a": "\ud800"},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_is_no_json_has_no_size_here_and_is_refused_elsewhere(odd: object) -> None:
    assert size_problem({"spec": odd}) is None


def nested(levels: int) -> object:
    inner: object = 0
    for _ in range(levels):
        inner = [inner]
    return inner


@pytest.mark.parametrize("odd", [10**4999, 1], ids=["5,000 digits", "one digit"])
def test_a_number_beside_it_does_not_hide_what_is_large(odd: object) -> None:
    problem = size_problem({"spec": {"odd": odd, "p": [0] * 100_000}})

    assert problem is not None
    assert problem.path == "spec.p"


@pytest.mark.parametrize("levels", [60, 3000])
def test_what_is_nested_deeply_is_refused_by_the_beginning_of_its_path(levels: int) -> None:
    with pytest.raises(InvalidJob) as refused:
        read_job(with_params(short=1, deep=nested(levels)))

    (problem,) = refused.value.problems
    assert problem.path == "spec.data.reasoningGym.params"
    assert problem.message.startswith("is nested deeply: a spec has at most 50 levels")


def test_a_spec_of_fifty_levels_is_no_problem_of_its_size() -> None:
    assert size_problem({"spec": nested(50)}) is None
    assert size_problem({"spec": nested(51)}) is not None


def test_of_a_list_of_thousands_of_faults_the_first_is_told() -> None:
    with pytest.raises(InvalidJob) as refused:
        read_job(with_params(p=[[] for _ in range(30_000)]))

    assert {problem.path.partition("[0]")[2] for problem in refused.value.problems} >= {
        ".bool",
        ".str",
    }
    assert len(refused.value.problems) < 10


def test_of_a_section_with_thousands_of_faults_fifty_are_told_and_those_of_others_too() -> None:
    job = with_params()
    job["spec"]["algorithm"]["params"] = {f"p{number}": 0 for number in range(5000)}
    job["spec"]["batch"]["globalBatchSize"] = 0
    job["spec"]["unknown"] = 0

    with pytest.raises(InvalidJob) as refused:
        read_job(job, name="job.yaml")

    told = [str(problem) for problem in refused.value.problems]
    assert sum("spec.algorithm.params.p" in line for line in told) == 50
    assert "job.yaml: has 5002 faults, 52 of which are shown" in told
    assert any(line.startswith("spec.batch.globalBatchSize") for line in told)
    assert any(line.startswith("spec.unknown") for line in told)
