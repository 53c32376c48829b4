"""What `scripts/release.sh` makes of a commit, up to the push and without images, and what it refuses."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from programs import require

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
Release = Callable[..., subprocess.CompletedProcess[str]]


def git(folder: Path, *words: str) -> None:
    author = ("-c", "user.name=ann", "-c", "user.email=ann@example.com")
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone with the present files, whose changelog tells of the version."""
    tree = tmp_path / "tree"
    git(tmp_path, "clone", "--quiet", "--no-tags", str(ROOT), str(tree))
    for name in ("scripts/release.sh", "pyproject.toml", "helm/rljob/Chart.yaml", ".gitignore"):
        shutil.copy(ROOT / name, tree / name)
    log = (ROOT / "CHANGELOG.md").read_text()
    (tree / "CHANGELOG.md").write_text(log.replace("## Unreleased", f"## {VERSION} - 2026-01-01"))
    git(tree, "commit", "--quiet", "--all", "--allow-empty", "--message", "The release")
    return tree


@pytest.fixture
def release(tree: Path) -> Release:
    require("helm", shutil.which("helm"))
    own = {"NAMES": "", "UV": str(Path(sys.executable).with_name("uv"))}

    def run(version: str = VERSION) -> subprocess.CompletedProcess[str]:
        command = [str(tree / "scripts" / "release.sh"), version]
        return subprocess.run(
            command, env=os.environ | own, capture_output=True, text=True, timeout=300
        )

    return run


def test_a_release_has_packages_chart_sbom_and_sums_and_tells_how_to_push(release, tree):
    git(tree, "tag", f"v{VERSION}")

    done = release()

    dist = tree / "dist"
    wheel, source = f"rljob-{VERSION}-py3-none-any.whl", f"rljob-{VERSION}.tar.gz"
    chart, sbom = f"rljob-{VERSION}.tgz", f"rljob-{VERSION}.cdx.json"
    assert done.returncode == 0, done.stderr
    assert {file.name for file in dist.iterdir()} == {wheel, source, chart, sbom, "SHA256SUMS"}
    with zipfile.ZipFile(dist / wheel) as packed:
        assert "rljob_operator/main.py" in packed.namelist()
    with tarfile.open(dist / chart) as packed:
        about = yaml.safe_load(packed.extractfile("rljob/Chart.yaml").read())
    assert (about["version"], about["appVersion"]) == (VERSION, VERSION)
    bill = json.loads((dist / sbom).read_text())
    parts = {part["name"]: part["version"] for part in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["version"] == VERSION
    assert parts["ray"] == "2.60.0" and "torch" in parts
    sums = dict(reversed(line.split()) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {wheel, source, chart, sbom}
    for name, told in sums.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == told
    for command in ("git push origin v", "publish dist/", "helm push dist/"):
        assert command in done.stdout


def test_a_tree_with_changes_is_not_released(release, tree):
    (tree / "notes.txt").write_text("to do")

    refused = release()

    assert refused.returncode == 1
    assert "the tree has changes; commit or stash them: ?? notes.txt" in refused.stderr
    assert not (tree / "dist").exists()


def test_a_version_that_is_not_the_codes_is_not_released(release):
    refused = release("99.0.0")

    assert refused.returncode == 1
    assert "pyproject.toml has no line 'version = \"99.0.0\"'" in refused.stderr


def test_a_version_of_which_the_changelog_says_nothing_is_not_released(release, tree):
    log = tree / "CHANGELOG.md"
    log.write_text(log.read_text().replace(f"## {VERSION}", "## Unreleased"))
    git(tree, "commit", "--quiet", "--all", "--message", "No section")

    refused = release()

    assert refused.returncode == 1
    assert f"CHANGELOG.md has no section '## {VERSION}'" in refused.stderr


def test_a_version_whose_tag_is_another_commits_is_not_released_again(release, tree):
    git(tree, "tag", f"v{VERSION}", "HEAD~1")

    refused = release()

    assert refused.returncode == 1
    assert f"there is a tag v{VERSION} already" in refused.stderr
