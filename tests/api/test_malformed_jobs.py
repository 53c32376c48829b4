"""Whatever a file holds, it is a job or its problems are named: no traceback, no hang, no endless memory."""

import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.check.load import load_job, read_job
from rljob_api.check.yaml_text import parse_yaml
from rljob_api.spec.problems import InvalidJob
from rljob_plan.plan import make_plan

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*(ROOT / "examples").rglob("*.yaml")])
TEXTS = [text for file in EXAMPLES if "kind: RLJob" in (text := file.read_text())]
MANIFESTS = [yaml.safe_load(text) for text in TEXTS]
SECTIONS = [*MANIFESTS[0]["spec"].values()]
BOUNDED = settings(
    deadline=timedelta(seconds=5), suppress_health_check=[HealthCheck.too_slow], max_examples=200
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
    st.sampled_from([-1, 0, 1, 2**31, 2**63, 10**40, 1e300, "", ".", "/", "-1", "1Gi", "9" * 400, "a.b"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values below."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


@st.composite
def spoiled(draw: st.DrawFn) -> Any:
    """An example with some of its values replaced, moved or left out, by whatever there is."""
    manifest = copy.deepcopy(draw(st.sampled_from(MANIFESTS)))
    for _ in range(draw(st.integers(1, 4))):
        *path, last = draw(st.sampled_from([place for place in places(manifest) if place]))
        inner = manifest
        for key in path:
            inner = inner[key]
        match draw(st.sampled_from(["replace", "remove", "add", "swap"])):
            case "replace":
                inner[last] = draw(VALUES)
            case "remove":
                del inner[last]
            case "add" if isinstance(inner, dict):
                inner[draw(st.text(max_size=8))] = draw(VALUES)
            case _:
                inner[last] = copy.deepcopy(draw(st.sampled_from(SECTIONS)))
    return manifest


@BOUNDED
@given(manifest=spoiled())
def test_a_spoiled_manifest_is_a_job_that_can_be_planned_or_its_problems_are_named(
    manifest: Any,
) -> None:
    try:
        job = read_job(manifest)
        make_plan(job, base_dir=ROOT / "examples")
    except InvalidJob as invalid:
        assert all(problem.message for problem in invalid.problems)


@BOUNDED
@given(
    text=st.sampled_from(TEXTS),
    edits=st.lists(
        st.tuples(
            st.integers(0, 10_000),
            st.integers(0, 40),
            st.one_of(
                st.text(max_size=10),
                st.sampled_from(
                    [
                        "&a ",
                        "*a",
                        "!!int x",
                        "!!bool x",
                        "<<: *a",
                        "? ",
                        "{",
                        "[",
                        "%",
                        "\t",
                        "9" * 5000,
                    ]
                ),
            ),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_a_spoiled_text_is_a_job_or_its_problems_are_named(
    text: str, edits: list[tuple[int, int, str]]
) -> None:
    for place, length, added in edits:
        start = place % len(text)
        text = text[:start] + added + text[start + length :]
    try:
        read_job(parse_yaml(text, name="job.yaml"))
    except InvalidJob as invalid:
        assert all(problem.message for problem in invalid.problems)


@given(content=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("bytes") / "job.yaml"
    file.write_bytes(content)

    with pytest.raises(InvalidJob):
        load_job(file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 5000, "nested too deeply"),
        (
            "a: &a [x]\n"
            + "".join(
                f"{c}: &{c} [{', '.join([f'*{b}'] * 9)}]\n"
                for b, c in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            "more than 100000 values, aliases written out",
        ),
        ("a: &a [*a]", "an alias of what it stands in"),
        ("spec: {steps: " + "9" * 5000 + "}", "cannot be read"),
        ("spec: {steps: !!int x}", "cannot be read"),
        ("spec: {steps: !!bool x}", "cannot be read"),
    ],
    ids=["brackets", "aliases", "circle", "digits", "integer", "boolean"],
)
def test_a_text_that_would_take_everything_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        parse_yaml(text, name="job.yaml")


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(InvalidJob, match="larger than 4 MiB"):
        load_job(Path("/dev/zero"))
