"""What the chart renders, as Helm does it; tests that ask for it are skipped where there is no helm."""

import functools
import os
import shutil
import subprocess

import pytest
import yaml
from chart_manifests import CHART, KUBERNETES
from programs import require

HELM = shutil.which("helm")


@functools.cache
def helm_template(folder, *options):
    """The ended process. Cached: most tests look at the same few renderings."""
    usual = (f"--kube-version={KUBERNETES}.0", "--namespace=rljob-system")
    own = dict.fromkeys(("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"), folder)
    return subprocess.run(
        [HELM, "template", "rljob", CHART, *usual, *options],
        capture_output=True, text=True, env=os.environ | own,
    )  # fmt: skip


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    require("helm", HELM, "there is no helm on PATH")
    folder = str(tmp_path_factory.mktemp("helm"))
    return lambda *values: helm_template(
        folder, *(value if value.startswith("--") else f"--set={value}" for value in values)
    )


@pytest.fixture
def render(helm):
    """render("replicas=2"): manifests with these values; render(EVERYTHING): with those of the file."""

    def rendered(*values):
        done = helm(*values)
        assert done.returncode == 0, done.stderr
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]

    return rendered


@pytest.fixture
def refusal(helm):
    """refusal("replica=2"): what Helm says about values that it does not take."""

    def said(*values):
        done = helm(*values)
        assert done.returncode != 0, done.stdout
        return done.stderr

    return said
