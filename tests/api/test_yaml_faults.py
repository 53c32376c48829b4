"""Files: what is no YAML is refused by line and column, and YAML means what Kubernetes reads."""

import pytest

from rljob_api.check.load import load_job
from rljob_api.check.yaml_text import parse_yaml
from rljob_api.spec.problems import InvalidJob


@pytest.mark.parametrize(
    ("text", "place", "fragment"),
    [
        ("a: 1\nb: [1,\n", "job.yaml:3:1", "expected the node content"),
        ("a: 1\n b: 2\n", "job.yaml:2:3", "mapping values are not allowed here"),
        ("a:\n  x: 1\n  y: 2\n  x: 3\n", "job.yaml:4:3", "key 'x' is written twice; keep one"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2:1", "a second document begins here; write one RLJob"),
        ("a: !!python/object:os.system x", "job.yaml:1:4", "could not determine a constructor"),
        ("a: *nowhere", "job.yaml:1:4", "undefined alias 'nowhere'"),
        ("a: \x00", "job.yaml", "special characters are not allowed"),
        ("? [a, b]\n: 1\n", "job.yaml:1:3", "unhashable key"),
    ],
)
def test_broken_yaml_is_refused_by_line_and_column(text, place, fragment):
    with pytest.raises(InvalidJob) as caught:
        parse_yaml(text, name="job.yaml")

    (problem,) = caught.value.problems
    assert problem.path == place
    assert fragment in problem.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E5", 1e5),
        (".5e3", 500.0),
        ("2026-01-02", "2026-01-02"),
        ("'1e-6'", "1e-6"),
        ("e5", "e5"),
        ("1.5", 1.5),
    ],
)
def test_scalars_mean_what_kubernetes_reads(text, value):
    parsed = parse_yaml(f"a: {text}", name="job.yaml")["a"]

    assert parsed == value
    assert type(parsed) is type(value)


def test_merge_keys_may_be_overridden():
    parsed = parse_yaml("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n", name="job.yaml")

    assert parsed["y"] == {"a": 1, "b": 3}


def test_unreadable_files_are_problems_of_the_file(tmp_path):
    binary, empty = tmp_path / "binary.yaml", tmp_path / "empty.yaml"
    binary.write_bytes(b"a: \xff")
    empty.write_text("")

    for file, fragment in (
        (tmp_path / "missing.yaml", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (binary, "is no UTF-8 text (byte 4)"),
        (empty, "is empty; write an RLJob"),
    ):
        with pytest.raises(InvalidJob) as caught:
            load_job(file)
        (problem,) = caught.value.problems
        assert problem.path == str(file)
        assert fragment in problem.message
