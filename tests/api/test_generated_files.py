"""The CRD and the reference: up to date, structural, and of one mind with the models."""

import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from rljob_api.check.scale_rules import COUNT_PATH
from rljob_api.check.yaml_text import parse_yaml
from rljob_api.schema import cel, crd, spec_docs
from rljob_api.schema.generated import write_or_check
from rljob_api.spec import patterns
from rljob_api.spec.rljob import RLJobSpec

ROOT = Path(__file__).parents[2]
JOBS = sorted((ROOT / "examples").glob("**/*.yaml"))


def parts(schema, path=()):
    """Every schema within, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from parts(inner, (*path, name))
    if "items" in schema:
        yield from parts(schema["items"], (*path, "[]"))


@pytest.mark.parametrize("module", ["crd", "spec_docs"])
def test_the_committed_file_is_what_the_models_say(module):
    done = subprocess.run(
        [sys.executable, "-m", f"rljob_api.schema.{module}", "--check"],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_is_out_of_date_is_named(tmp_path, capsys):
    file = tmp_path / "x.md"

    assert write_or_check(file, "a", check=True) == 1
    assert write_or_check(file, "a", check=False) == 0
    assert write_or_check(file, "a", check=True) == 0
    assert write_or_check(file, "b", check=True) == 1
    assert f"{file} is out of date; run make generate" in capsys.readouterr().err


def test_the_schema_is_structural():
    forbidden = {"$ref", "$defs", "anyOf", "oneOf", "allOf", "title", "const", "discriminator"}

    for path, schema in parts(crd.resource_schema()):
        assert "type" in schema, path
        assert not forbidden & set(schema), path
        assert not isinstance(schema.get("exclusiveMinimum", True), float), path
        assert "default" not in schema or schema["default"] is not None, path


def test_every_field_has_a_help_text():
    for path, schema in parts(crd.resource_schema()["properties"]["spec"]):
        assert path[-1:] in ((), ("[]",)) or schema["description"], path


def test_lists_and_texts_that_rules_read_are_bounded():
    for path, schema in parts(crd.resource_schema()["properties"]["spec"]):
        if schema["type"] == "array":
            assert "maxItems" in schema, path
        if schema["type"] == "string":
            assert "maxLength" in schema or "enum" in schema, path


def test_the_api_server_fixes_what_a_resumed_run_must_share():
    spec = crd.resource_schema()["properties"]["spec"]

    fixed = {
        name
        for name, schema in spec["properties"].items()
        if any(r["rule"] == "self == oldSelf" for r in schema.get("x-kubernetes-validations", []))
    }

    assert set(spec["properties"]) - fixed == {*cel.MUTABLE, *cel.LAYOUT}


def test_of_sections_with_a_layout_every_other_field_is_fixed():
    spec = crd.resource_schema()["properties"]["spec"]

    for key, parts_that_move in cel.LAYOUT.items():
        section = spec["properties"][key]
        assert set(parts_that_move) <= set(section["properties"]), key
        rules = [rule["rule"] for rule in section.get("x-kubernetes-validations", [])]
        held = next((rule for rule in rules if "oldSelf" in rule), "")
        fixed = set(re.findall(r"has\(oldSelf\.(\w+)\)", held))
        assert fixed == (set(section["properties"]) - set(parts_that_move) if held else set()), key
        assert bool(held) == bool(parts_that_move and key not in cel.MUTABLE), key


def test_rules_name_keys_that_exist():
    schema = crd.resource_schema()
    known = {name for path, _ in parts(schema) for name in path} | {"self", "has"}

    for path, rules in cel.RULES.items():
        crd._schema_at(schema, path)
        for rule, _ in rules:
            for access in re.findall(r"(?:self|r)(?:\.[a-zA-Z]+)+(?![a-zA-Z(.])", rule):
                names = access.split(".")[1:]
                assert set(names) <= known, rule


def test_versions_differ_by_name_and_storage_alone():
    newest, stored = crd.crd()["spec"]["versions"]

    assert (newest.pop("name"), newest.pop("storage")) == ("v1beta1", False)
    assert (stored.pop("name"), stored.pop("storage")) == ("v1alpha1", True)
    assert newest == stored


def test_columns_are_those_that_users_look_for():
    version = crd.crd()["spec"]["versions"][0]

    names = [column["name"] for column in version["additionalPrinterColumns"]]

    assert names == [
        "Phase",
        "Step",
        "Reward",
        "Tokens/s",
        "Devices",
        "Restarts",
        "Age",
        "Spares",
        "Chips healthy",
    ]


def test_kubectl_scale_sets_a_field_that_exists_and_may_change():
    version = crd.crd()["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]

    scale = version["subresources"]["scale"]
    kinds = {name: crd._schema_at(root, path[1:])["type"] for name, path in scale.items()}

    assert scale["specReplicasPath"] == f".{COUNT_PATH}"
    assert kinds == {
        "specReplicasPath": "integer",
        "statusReplicasPath": "integer",
        "labelSelectorPath": "string",
    }
    assert "placement" in cel.MUTABLE


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_examples_are_valid_under_the_schema_that_the_api_server_uses(file):
    schema = crd.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    job = parse_yaml(file.read_text(), name=file.name)

    # OpenAPI 3.0 bounds are JSON Schema draft 4's
    assert list(jsonschema.Draft4Validator(schema).iter_errors(job)) == []


def test_every_pattern_that_a_message_may_tell_is_told_in_words():
    values = {
        field["pattern"]
        for field in pattern_fields(RLJobSpec.__pydantic_core_schema__)
        if field["type"] == "str" and field.get("pattern")
    }

    assert values <= set(patterns.WORDS)


def pattern_fields(schema):
    """Every part of a core schema that may have a pattern."""
    if isinstance(schema, dict):
        if "type" in schema:
            yield schema
        for part in schema.values():
            yield from pattern_fields(part)
    elif isinstance(schema, (list, tuple)):
        for part in schema:
            yield from pattern_fields(part)


def test_the_reference_has_a_row_for_every_field_of_the_spec():
    text = spec_docs.docs()

    for path, _ in parts(crd.structural(RLJobSpec)):
        if path and path[-1] != "[]":
            section = ".".join(("spec", *path[:-1])).replace(".[]", "[]")
            section = re.sub(r"(?<=podTemplates\.)(head|worker|warehouse)", "ROLE", section)
            named = re.escape(section).replace(
                "algorithm", r"algorithm( \([-.a-zA-Z]+\))?"
            )  # a union
            tables = re.finditer(rf"^## `{named}`\n(?:(?!## ).*\n)*", text, re.MULTILINE)
            table = "".join(found.group(0) for found in tables)
            assert f"| `{path[-1]}` |" in table, path
