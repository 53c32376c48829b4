"""What a job asks of the cluster, as the operator will ask for it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_api.infrastructure import Accelerator
from rljob_api.pods import PodTemplate
from rljob_api.rljob import RLJob
from rljob_api.topology import num_nodes
from rljob_api.worker_pods import is_ascend
from rljob_runtime.doctor.facts import Manifest
from rljob_runtime.doctor.installed import Installed

ROLES = ("head", "worker", "warehouse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Of one job. resource: of the device plugin, that each worker pod asks for; None without one. images: by
    role; "" where only the operator knows it. claims: that its pods mount, with the roles that do."""

    job: RLJob
    nodes: int
    resource: str | None
    images: dict[str, str]
    claims: dict[str, tuple[str, ...]]

    @property
    def accelerator(self) -> Accelerator:
        """The job's devices."""
        return self.job.spec.accelerator

    @property
    def worker(self) -> PodTemplate:
        """What the job says of its worker pods."""
        return self.job.spec.pod_templates.worker or PodTemplate()

    @property
    def selector(self) -> dict[str, str]:
        """Labels that a worker's node must have."""
        return self.accelerator.node_selector | self.worker.node_selector

    @property
    def tolerations(self) -> list[Manifest]:
        """Of worker pods."""
        given = self.worker.tolerations
        return [taint.model_dump(by_alias=True, exclude_none=True) for taint in given]


def need_of(job: RLJob, operator: Installed | None) -> Need:
    """The job's need. operator: None where it could not be seen."""
    spec, accelerator = job.spec, job.spec.accelerator
    ascend, default = is_ascend(accelerator), ""
    if operator is not None:
        default = operator.ascend_image if ascend else operator.runtime_image
    by_plugin = ascend or (operator is not None and operator.device_plugin)
    return Need(
        job=job,
        nodes=num_nodes(spec.placement, accelerator),
        resource=accelerator.resource_name
        if by_plugin and accelerator.injection != "dra"
        else None,
        images={role: _template(job, role).image or spec.image or default for role in ROLES},
        claims=_claims(job),
    )


def one_of(operators: Iterable[Installed], namespace: str) -> Installed | None:
    """The operator that looks after the namespace, where there is one."""
    return next((one for one in operators if one.looks_after(namespace)), None)


def _claims(job: RLJob) -> dict[str, tuple[str, ...]]:
    mounted: dict[str, list[str]] = {}
    storage = job.spec.checkpoint.storage
    if storage is not None and storage.persistent_volume_claim is not None:
        mounted[storage.persistent_volume_claim.claim_name] = ["head", "worker"]
    for role in ROLES:
        for volume in _template(job, role).volumes:
            if (claim := volume.persistent_volume_claim) is not None:
                mounted.setdefault(claim.claim_name, []).append(role)
    return {name: tuple(dict.fromkeys(roles)) for name, roles in mounted.items()}


def _template(job: RLJob, role: str) -> PodTemplate:
    given: PodTemplate | None = getattr(job.spec.pod_templates, role)
    return given or PodTemplate()
