"""Builders for the operator: the children of a job with a changed spec, and what Helm renders of the chart.

Tests that ask for the chart are skipped where there is no helm.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from chart_manifests import CHART, KUBERNETES
from cluster_jobs import JOB, SETTINGS, TOKEN, identity, merged
from programs import require

from rljob_api.check.load import read_job
from rljob_operator.build import children
from rljob_operator.build.names import cluster_name

HELM = shutil.which("helm")


@pytest.fixture
def built() -> Callable[..., list[dict[str, Any]]]:
    """built({"accelerator": {...}}): the children of the job with a changed spec."""

    def build(spec=None, *, name="spell-backward", settings=SETTINGS, group=0, released=False):
        job = read_job(merged(JOB, {"metadata": {"name": name}, "spec": spec or {}}))
        cluster = cluster_name(name, group)
        return children(job, identity(name), settings, TOKEN, cluster=cluster, released=released)

    return build


@pytest.fixture
def cluster(built) -> Callable[..., dict[str, Any]]:
    """cluster({"accelerator": {...}}): the RayCluster of the job with a changed spec."""
    return lambda spec=None, **rest: built(spec, **rest)[-1]


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
    """The ended process of `helm template` with these values."""
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
