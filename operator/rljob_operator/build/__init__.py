"""The manifests of a job's children: pure functions of the job and the operator's settings.

Called by `apply`, which sends them by server-side apply in the order given. Equal arguments give
equal manifests, so an unchanged job changes nothing on the cluster.
"""

from rljob_api.spec.rljob import RLJob
from rljob_operator.build.accelerators import claim_template
from rljob_operator.build.account import service_account
from rljob_operator.build.cluster import Groups, ray_cluster
from rljob_operator.build.config import config_map
from rljob_operator.build.identity import Identity
from rljob_operator.build.names import Manifest
from rljob_operator.build.network import network_policy
from rljob_operator.build.secret import token_secret
from rljob_operator.settings import Settings


def children(
    job: RLJob,
    identity: Identity,
    settings: Settings,
    token: str,
    *,
    cluster: str,
    released: bool = False,
    workers: int | None = None,
    leaving: tuple[str, ...] = (),
) -> list[Manifest]:
    """Everything that the job owns, each after what it refers to; the RayCluster is last.

    job: passed the rules. token: what Ray and the dock's clients show each other. cluster: name of
    the RayCluster. released: without workers and warehouses. workers: worker pods, if not the spec's
    number; leaving: those of them that go.
    """
    manifests = [
        service_account(identity),
        token_secret(identity, token),
        config_map(job, identity),
    ]
    if settings.network_policy:
        manifests.append(network_policy(identity, settings))
    if job.spec.accelerator.injection == "dra":
        manifests.append(claim_template(job.spec.accelerator, identity))
    counted = 0 if released else workers
    groups = Groups(workers=counted, leaving=leaving, released=released)
    return [*manifests, ray_cluster(job, identity, settings, name=cluster, groups=groups)]
