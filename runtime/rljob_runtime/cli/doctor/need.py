"""What a job asks of the cluster, as the operator will ask for it. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_api.spec.infrastructure import Accelerator
from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import num_nodes
from rljob_api.topology.worker_pods import is_ascend
from rljob_runtime.cli.doctor.cluster_facts import Manifest, Reference
from rljob_runtime.cli.doctor.installed import Installed

ROLES = ("head", "worker", "warehouse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Of one job. resource: of the device plugin, that each worker pod asks for; None without one. images: by
    role; "" where only the operator knows it. claims: that its pods mount, with the roles that do.
    references: Secrets and ConfigMaps, with the first field that names each."""

    job: RLJob
    nodes: int
    resource: str | None
    images: dict[str, str]
    claims: dict[str, tuple[str, ...]]
    references: dict[Reference, str]

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
        references=references_of(job),
    )


def references_of(job: RLJob) -> dict[Reference, str]:
    """Secrets and ConfigMaps without which pods do not start, and the first field that names each."""
    found: dict[Reference, str] = {}
    for field, resource, name in _references(job):
        found.setdefault(Reference(resource, name), field)
    return found


def _references(job: RLJob) -> Iterator[tuple[str, str, str]]:
    """Field, resource and name of each."""
    storage, tracking = job.spec.checkpoint.storage, job.spec.tracking
    if storage is not None and storage.remote is not None and storage.remote.secret_name:
        yield "checkpoint.storage.remote.secretName", "secrets", storage.remote.secret_name
    if tracking is not None and tracking.secret_name:
        yield "tracking.secretName", "secrets", tracking.secret_name
    for role in ROLES:
        template, at = _template(job, role), f"podTemplates.{role}"
        for secret in template.image_pull_secrets:
            yield f"{at}.imagePullSecrets", "secrets", secret.name
        for variable in template.env:
            source = variable.value_from
            if source is not None and source.secret_key_ref is not None:
                yield f"{at}.env", "secrets", source.secret_key_ref.name
            if source is not None and source.config_map_key_ref is not None:
                yield f"{at}.env", "configmaps", source.config_map_key_ref.name
        for volume in template.volumes:
            if volume.secret is not None:
                yield f"{at}.volumes", "secrets", volume.secret.secret_name
            if volume.config_map is not None:
                yield f"{at}.volumes", "configmaps", volume.config_map.name


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
