"""Fields and YAML of the documentation are those of a job, of a part of one, of the chart's values."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_jobs import merged
from documented import PAGES, ROOT, Block, blocks_of, code_of, name_of

from rljob_api.check.load import read_job
from rljob_api.schema import crd
from rljob_api.spec.rljob import RLJobSpec

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
KEYS = {field.alias or name for name, field in RLJobSpec.model_fields.items()}
SOURCES = {"reasoningGym", "drawn", "jsonl", "parquet", "source", "preferences", "environment"}
BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.language == "yaml"]


SCHEMA = crd.structural(RLJobSpec)
OF_OTHERS = {"CHANGELOG.md", "helm/rljob/README.md"}
"""One speaks of the past, the other of values."""


def place_of(block: Block) -> str:
    return f"{name_of(block.page)}:{block.line}"


def part_of_a_job(block: Block) -> dict[str, Any] | None:
    """The spec's part that the block shows; None where it shows another thing."""
    shown = yaml.safe_load(block.text)
    spec = shown.get("spec", shown) if "kind" not in shown else {}
    return spec if spec and set(spec) <= KEYS else None


def around(part: dict[str, Any]) -> dict[str, Any]:
    """A job that lacks what the part brings: the quickstart with more devices and longer responses."""
    job = yaml.safe_load(QUICKSTART.read_text())
    spec = job["spec"] | {"rewards": [{"name": "correct", "type": "exact"}]}
    spec["accelerator"]["devicesPerNode"] = 4
    spec["batch"]["maxResponseLength"] = 1024
    del spec["algorithm"]
    if SOURCES & set(part.get("data", ())):
        del spec["data"]
    if part.get("data", {}).get("chat"):
        spec["model"] = {"builtin": "smollm2-135m-instruct"}
    if "path" in part.get("model", ()):
        del spec["model"]
    if "preferences" in part.get("data", ()):
        del spec["rewards"]
    return job | {"spec": spec}


PARTS = [block for block in BLOCKS if part_of_a_job(block)]


def test_the_readme_shows_the_quickstart() -> None:
    (shown,) = [block.text for block in BLOCKS if block.page == ROOT / "README.md"]

    assert shown == QUICKSTART.read_text()


@pytest.mark.parametrize("block", PARTS, ids=place_of)
def test_a_part_of_a_job_is_valid_in_a_whole_one(block: Block) -> None:
    part = part_of_a_job(block)
    assert part is not None

    job = read_job(merged(around(part), {"spec": part}))

    assert job.metadata.name == "quickstart"


def test_every_other_block_is_known() -> None:
    others = {}
    for block in BLOCKS:
        if block not in PARTS:
            shown = yaml.safe_load(block.text)
            others[place_of(block).partition(":")[0]] = shown.get("kind", " ".join(shown))

    assert others == {
        "README.md": "RLJob",
        "docs/ascend.md": "Pod",
        "docs/device-plugin.md": "emulatedDevicePlugin",
        "docs/install.md": "ResourceQuota",
        "docs/operator.md": "faults",
        "docs/queues.md": "List",
    }


def test_the_charts_values_are_those_of_its_file() -> None:
    (shown,) = [yaml.safe_load(b.text) for b in BLOCKS if b.page.name == "device-plugin.md"]
    values = yaml.safe_load((ROOT / "helm" / "rljob" / "values.yaml").read_text())

    for key, value in shown.items():
        assert set(value) <= set(values[key])


def is_field(path: str) -> bool:
    """Whether `flow.mode` or `rewards[].http` is a field of the spec, or lies in one that is left open."""
    part: dict[str, Any] = SCHEMA
    for key in path.replace("[]", "").replace("podTemplates.ROLE", "podTemplates.head").split("."):
        if "properties" not in part:
            return True
        if key not in part["properties"]:
            return False
        part = part["properties"][key]
        part = part.get("items", part)
    return True


@pytest.mark.parametrize(
    "page", [page for page in PAGES if name_of(page) not in OF_OTHERS], ids=name_of
)
def test_every_field_that_a_page_names_is_one_of_the_spec(page: Path) -> None:
    path = re.compile(
        rf"(?:spec\.)?((?:{'|'.join(KEYS)})(?:\[\])?(?:\.[a-zA-Z]+(?:\[\])?)+)(?=$|:|\s)"
    )
    found = [
        (code, path.match(code)) for code in code_of(page) if not code.endswith((".py", ".md"))
    ]

    assert [code for code, match in found if match and not is_field(match[1])] == []


def test_a_field_that_is_not_there_is_found() -> None:
    assert is_field("rewards[].http.concurrency")
    assert not is_field("rollout.parallelism.context")
