"""Items travel as JSON and come back as they were."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.task.data.entries import from_json, to_json
from rljob_runtime.task.data.gym import make_dataset

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
keys = st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.integers())
items = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=10,
)


@given(items)
def test_any_nesting_of_tuples_and_keys_comes_back(item: object) -> None:
    assert from_json(json.loads(json.dumps(to_json(item)))) == item


def test_keys_that_look_like_the_marks_come_back() -> None:
    item = {"()": [1], "{}": [[2, 3]]}

    assert from_json(json.loads(json.dumps(to_json(item)))) == item


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="set cannot be kept"):
        to_json({"a": {1}})


def test_a_scorer_that_compares_tuples_accepts_its_own_answer() -> None:
    dataset = make_dataset("rearc", {}, seed=3, size=1)
    item = dataset[0]

    returned = from_json(json.loads(json.dumps(to_json(item))))

    assert dataset.score_answer(item["answer"], returned) == 1.0
    assert dataset.score_answer(item["answer"], json.loads(json.dumps(item))) < 1.0
