"""The manifests of a job's children: pure functions of the job and the operator's settings.

Called by `apply`, which sends them by server-side apply in the order given. Equal arguments give
equal manifests, so an unchanged job changes nothing on the cluster.
"""

from collections.abc import Mapping

from rljob_api.spec.rljob import RLJob
from rljob_operator.build.accelerators import claim_template
from rljob_operator.build.account import service_account
from rljob_operator.build.cluster import Groups, kept, pod_images, ray_cluster
from rljob_operator.build.config import config_map
from rljob_operator.build.gang import makes_group
from rljob_operator.build.grants import Grant
from rljob_operator.build.identity import Identity
from rljob_operator.build.names import Manifest, Role
from rljob_operator.build.network import network_policy
from rljob_operator.build.pod_group import is_grouped, pod_group
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
    avoid: tuple[str, ...] = (),
    grants: Mapping[Role, Grant] | None = None,
    living: Manifest | None = None,
) -> list[Manifest]:
    """Everything that the job owns, each after what it refers to; the RayCluster is last.

    job: passed the rules. token: what Ray and the dock's clients show each other. cluster: name of
    the RayCluster. released: without workers and warehouses. workers: worker pods, if not the spec's
    number; leaving: those of them that go. avoid: nodes that new worker pods keep off where they can.
    grants: what Kueue's admission adds to the pods. living: the RayCluster where it is there already, which
    stays as it is but for the numbers of its pods and the nodes that they keep off; while its images are of
    another release, so do the other children, which that release made for them.
    """
    counted = 0 if released else workers
    groups = Groups(
        workers=counted, leaving=leaving, released=released, avoid=avoid, grants=grants or {}
    )
    whole = ray_cluster(job, identity, settings, name=cluster, groups=groups)
    if living is not None:
        outdated = pod_images(living) != pod_images(whole)
        whole = kept(living, whole)
        if outdated:
            return [whole]
    manifests = [
        service_account(identity),
        token_secret(identity, token),
        config_map(job, identity),
    ]
    if settings.network_policy:
        manifests.append(network_policy(identity, settings))
    if job.spec.accelerator.injection == "dra":
        manifests.append(claim_template(job.spec.accelerator, identity))
    if makes_group(job.spec.scheduling, settings) and is_grouped(whole):
        manifests.append(pod_group(job, identity, whole, released=released))
    return [*manifests, whole]
