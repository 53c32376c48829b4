"""Build the manifests of a job's children: pure functions of the job and the operator's settings.

Called by `apply`, which sends them by server-side apply in the given order. Equal arguments give equal
manifests, so an unchanged job changes nothing on the cluster.
"""

from collections.abc import Mapping

from rljob_api.spec.rljob import RLJob
from rljob_operator.build.accelerators import claim_template
from rljob_operator.build.account import service_account
from rljob_operator.build.cluster import GroupOverrides, pod_images, ray_cluster, updated_cluster
from rljob_operator.build.config import config_map
from rljob_operator.build.gang import makes_group
from rljob_operator.build.grants import PodGrant
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import Manifest, Role
from rljob_operator.build.network import network_policy
from rljob_operator.build.pod_group import is_grouped, pod_group
from rljob_operator.build.secret import token_secret
from rljob_operator.settings import Settings


def children(
    job: RLJob,
    identity: JobIdentity,
    settings: Settings,
    token: str,
    *,
    cluster: str,
    released: bool = False,
    workers: int | None = None,
    leaving: tuple[str, ...] = (),
    avoid: tuple[str, ...] = (),
    grants: Mapping[Role, PodGrant] | None = None,
    living: Manifest | None = None,
) -> list[Manifest]:
    """Return all objects that the job owns, each after those that it refers to; the RayCluster is last.

    job: passed the rules. token: authenticates Ray and the dock's clients to each other. cluster: name of the
    RayCluster. released: without workers and warehouses. workers: worker pods, if not the spec's number;
    leaving: those that are removed. avoid: nodes that new worker pods avoid if they can. grants: what Kueue's
    admission adds to the pods.

    living: the existing RayCluster, which is kept except for the numbers of its pods and the nodes that they
    avoid. If its images are of another release, the other children are kept too, since that release made
    them.
    """
    worker_count = 0 if released else workers
    groups = GroupOverrides(
        workers=worker_count, leaving=leaving, released=released, avoid=avoid, grants=grants or {}
    )
    cluster_manifest = ray_cluster(job, identity, settings, name=cluster, groups=groups)
    if living is not None:
        outdated = pod_images(living) != pod_images(cluster_manifest)
        cluster_manifest = updated_cluster(living, cluster_manifest)
        if outdated:
            return [cluster_manifest]
    manifests = [
        service_account(identity),
        token_secret(identity, token),
        config_map(job, identity),
    ]
    if settings.network_policy:
        manifests.append(network_policy(identity, settings))
    if job.spec.accelerator.injection == "dra":
        manifests.append(claim_template(job.spec.accelerator, identity))
    if makes_group(job.spec.scheduling, settings) and is_grouped(cluster_manifest):
        manifests.append(pod_group(job, identity, cluster_manifest, released=released))
    return [*manifests, cluster_manifest]
