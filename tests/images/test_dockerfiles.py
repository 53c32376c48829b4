"""What every image keeps to: where it starts from, who it runs as, what it holds."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from rljob_api.topology.worker_pods import USER
from rljob_operator.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "images").glob("*.Dockerfile"))
BASE = "${BASE_IMAGE}"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
(RAY,) = (re.findall(r"==(.+)", line)[0] for line in PROJECT["dependencies"] if "ray[" in line)

every_image = pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)


def instructions(file: Path) -> list[tuple[str, str]]:
    """(name, arguments) of each instruction, without comments and with joined lines."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    split = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name, " ".join(arguments.split())) for name, arguments in split]


def arguments(file: Path, name: str) -> list[str]:
    return [given for found, given in instructions(file) if found == name]


def test_all_images_are_looked_at() -> None:
    names = {file.name.removesuffix(".Dockerfile") for file in DOCKERFILES}

    assert names == {"device-plugin", "operator", "runtime", "runtime-ascend"}


@every_image
def test_an_image_starts_from_a_pinned_base_that_the_builder_may_replace(file: Path) -> None:
    first, *_ = instructions(file)
    stages = [given.split() for given in arguments(file, "FROM")]

    assert re.fullmatch(r"ARG BASE_IMAGE=\S+/\S+:\S*\d\S*", " ".join(first))
    assert {image for image, *_ in stages} == {BASE}
    assert "latest" not in file.read_text()


@every_image
def test_an_image_runs_as_an_unprivileged_user_or_says_why_not(file: Path) -> None:
    *_, user = arguments(file, "USER")

    if user == "0:0":
        assert file.name == "device-plugin.Dockerfile"
        assert "# Root, because" in file.read_text()
    else:
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


@pytest.mark.parametrize("name", ["runtime", "runtime-ascend"])
def test_jobs_images_run_as_the_user_of_their_pods_and_have_what_kuberay_calls(name: str) -> None:
    file = ROOT / "images" / f"{name}.Dockerfile"

    assert arguments(file, "USER")[-1] == f"{USER}:{USER}"
    assert any("command -v wget" in given for given in arguments(file, "RUN"))


@every_image
def test_an_image_names_itself_and_its_license(file: Path) -> None:
    (labels,) = arguments(file, "LABEL")

    title = f'org.opencontainers.image.title="rljob-{file.name.removesuffix(".Dockerfile")}"'
    assert title in labels
    assert f'org.opencontainers.image.licenses="{PROJECT["license"]}"' in labels


@every_image
def test_an_image_copies_what_exists(file: Path) -> None:
    stages = {given.split()[-1] for given in arguments(file, "FROM") if " AS " in given}

    for given in arguments(file, "COPY"):
        *sources, _ = given.split()
        if sources[0].startswith("--from="):
            assert sources[0].removeprefix("--from=") in stages
        else:
            assert [source for source in sources if not (ROOT / source).exists()] == []


@every_image
def test_an_image_names_no_ray_of_its_own(file: Path) -> None:
    assert re.findall(r"\bray(?:\[\w+\])?[=<>~]=[^\s'\"]+", file.read_text()) == []


@pytest.mark.parametrize("name", ["operator", "device-plugin", "setup"])
def test_uv_itself_has_the_version_that_is_pinned(name: str) -> None:
    file = "scripts/setup.sh" if name == "setup" else f"images/{name}.Dockerfile"
    (install,) = re.findall(r"pip install [^&\n]*\buv$", (ROOT / file).read_text(), re.MULTILINE)

    assert "-c constraints.txt" in install
    assert re.search(r"^uv==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def test_images_operator_and_chart_mean_the_same_ray() -> None:
    pins = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    values = yaml.safe_load((ROOT / "helm/rljob/values.yaml").read_text())

    assert pins == [RAY]
    assert Settings(runtime_image="", ascend_image="").ray_version == RAY
    assert values["jobs"]["rayVersion"] == RAY
