"""What a job asks of the cluster, as the operator will ask for it. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_api.spec.infrastructure import Accelerator
from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import num_nodes
from rljob_api.topology.worker_pods import device_resource_name, is_ascend
from rljob_runtime.cli.doctor.cluster_facts import Manifest, Reference, Unseen
from rljob_runtime.cli.doctor.installed import Installed, installed

ROLES = ("head", "worker", "warehouse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Of one job. resource: of the device plugin, that each worker pod asks for; None without one. images: by
    role; "" where only the operator knows it. pull_secrets: by role, the operator's first. claims: that its
    pods mount, with the roles that do."""

    job: RLJob
    nodes: int
    spares: int
    resource: str | None
    images: dict[str, str]
    pull_secrets: dict[str, tuple[str, ...]]
    claims: dict[str, tuple[str, ...]]

    @property
    def accelerator(self) -> Accelerator:
        """The job's devices."""
        return self.job.spec.accelerator

    @property
    def worker(self) -> PodTemplate:
        """What the job says of its worker pods."""
        return self.template("worker")

    def template(self, role: str) -> PodTemplate:
        """What the job says of the role's pods."""
        return _template(self.job, role)

    @property
    def selector(self) -> dict[str, str]:
        """Labels that a worker's node must have."""
        return self.accelerator.node_selector | self.worker.node_selector

    @property
    def tolerations(self) -> list[Manifest]:
        """Of worker pods."""
        return self.tolerations_of("worker")

    def tolerations_of(self, *roles: str) -> list[Manifest]:
        """Of the roles' pods."""
        given = [taint for role in roles for taint in self.template(role).tolerations]
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
        spares=accelerator.spare_nodes,
        resource=device_resource_name(accelerator)
        if by_plugin and accelerator.injection != "dra"
        else None,
        images={role: _template(job, role).image or spec.image or default for role in ROLES},
        pull_secrets={role: _pull_secrets(job, role, operator) for role in ROLES},
        claims=_claims(job),
    )


def references_of(job: RLJob | None, operator: Installed | None) -> list[Reference]:
    """Secrets and ConfigMaps without which pods do not start, each with the first field that names it."""
    found: dict[tuple[str, str, bool], Reference] = {}
    for reference in (*_of_operator(operator), *_of_job(job)):
        found.setdefault((reference.resource, reference.name, reference.pulls), reference)
    return list(found.values())


def _of_operator(operator: Installed | None) -> Iterator[Reference]:
    for name in operator.pull_secrets if operator is not None else ():
        yield Reference("secrets", name, "the chart's jobs.imagePullSecrets", pulls=True)


def _of_job(job: RLJob | None) -> Iterator[Reference]:
    if job is None:
        return
    for role in ROLES:
        for secret in _template(job, role).image_pull_secrets:
            field = f"podTemplates.{role}.imagePullSecrets"
            yield Reference("secrets", secret.name, field, pulls=True)
    for field, resource, name in _contents(job):
        yield Reference(resource, name, field)


def _contents(job: RLJob) -> Iterator[tuple[str, str, str]]:
    """Field, resource and name of what containers read."""
    storage, tracking = job.spec.checkpoint.storage, job.spec.tracking
    if storage is not None and storage.remote is not None and storage.remote.secret_name:
        yield "checkpoint.storage.remote.secretName", "secrets", storage.remote.secret_name
    if (record := job.spec.accelerator.bring_up) is not None:
        yield "accelerator.bringUp", "configmaps", record
    if tracking is not None and tracking.secret_name:
        yield "tracking.secretName", "secrets", tracking.secret_name
    for role in ROLES:
        template, at = _template(job, role), f"podTemplates.{role}"
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


def operator_of(deployments: Iterable[Manifest] | Unseen, namespace: str) -> Installed | None:
    """The operator that looks after the namespace, where there is one."""
    there = () if isinstance(deployments, Unseen) else map(installed, deployments)
    return next((one for one in there if one.looks_after(namespace)), None)


def _pull_secrets(job: RLJob, role: str, operator: Installed | None) -> tuple[str, ...]:
    """In the order and manner of the operator."""
    given = operator.pull_secrets if operator is not None else ()
    own = (secret.name for secret in _template(job, role).image_pull_secrets)
    return tuple(dict.fromkeys((*given, *own)))


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
