"""Builders for the operator: the children of a job with a changed spec."""

from collections.abc import Callable
from typing import Any

import pytest
from cluster_jobs import JOB, SETTINGS, TOKEN, identity, merged

from rljob_api.check.load import read_job
from rljob_operator.build import children
from rljob_operator.build.names import cluster_name


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
