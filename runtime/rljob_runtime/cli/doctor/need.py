"""Resources that a job needs of the cluster, as the operator will request them. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_api.spec.infrastructure import Accelerator
from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import num_nodes
from rljob_api.topology.worker_pods import device_resource_name, is_ascend
from rljob_runtime.cli.doctor.cluster_facts import Manifest, Reference, UnreadableFact
from rljob_runtime.cli.doctor.installed import InstalledOperator, operator_of_deployment

ROLES = ("head", "worker", "warehouse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Needs of one job. resource: the device plugin's that each worker pod requests; None without one.
    images: by role; "" where only the operator defines it. pull_secrets: by role, the operator's first.
    claims: those that its pods mount, with the roles that mount them."""

    job: RLJob
    nodes: int
    spares: int
    resource: str | None
    images: dict[str, str]
    pull_secrets: dict[str, tuple[str, ...]]
    claims: dict[str, tuple[str, ...]]

    @property
    def accelerator(self) -> Accelerator:
        """Return the accelerator section of the job."""
        return self.job.spec.accelerator

    @property
    def worker(self) -> PodTemplate:
        """Return the job's template of worker pods."""
        return self.template("worker")

    def template(self, role: str) -> PodTemplate:
        """Return the job's template of the role's pods."""
        return _template(self.job, role)

    @property
    def selector(self) -> dict[str, str]:
        """Return the labels that a worker's node must have."""
        return self.accelerator.node_selector | self.worker.node_selector

    @property
    def tolerations(self) -> list[Manifest]:
        """Return the tolerations of worker pods."""
        return self.tolerations_of("worker")

    def tolerations_of(self, *roles: str) -> list[Manifest]:
        """Return the tolerations of the roles' pods."""
        tolerations = [
            toleration for role in roles for toleration in self.template(role).tolerations
        ]
        return [
            toleration.model_dump(by_alias=True, exclude_none=True) for toleration in tolerations
        ]


def need_of(job: RLJob, operator: InstalledOperator | None) -> Need:
    """Return the needs of the job. operator: None where it is unavailable."""
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


def references_of(job: RLJob | None, operator: InstalledOperator | None) -> list[Reference]:
    """Return the Secrets and ConfigMaps without which pods do not start, each with the first field that names
    it."""
    references: dict[tuple[str, str, bool], Reference] = {}
    for reference in (*_of_operator(operator), *_of_job(job)):
        references.setdefault((reference.resource, reference.name, reference.pulls), reference)
    return list(references.values())


def _of_operator(operator: InstalledOperator | None) -> Iterator[Reference]:
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
    """Yield field, resource and name of each object that containers read."""
    storage, tracking = job.spec.checkpoint.storage, job.spec.tracking
    if storage is not None and storage.remote is not None and storage.remote.secret_name:
        yield "checkpoint.storage.remote.secretName", "secrets", storage.remote.secret_name
    if (record := job.spec.accelerator.bring_up) is not None:
        yield "accelerator.bringUp", "configmaps", record
    if tracking is not None and tracking.secret_name:
        yield "tracking.secretName", "secrets", tracking.secret_name
    for role in ROLES:
        template, template_path = _template(job, role), f"podTemplates.{role}"
        for variable in template.env:
            source = variable.value_from
            if source is not None and source.secret_key_ref is not None:
                yield f"{template_path}.env", "secrets", source.secret_key_ref.name
            if source is not None and source.config_map_key_ref is not None:
                yield f"{template_path}.env", "configmaps", source.config_map_key_ref.name
        for volume in template.volumes:
            if volume.secret is not None:
                yield f"{template_path}.volumes", "secrets", volume.secret.secret_name
            if volume.config_map is not None:
                yield f"{template_path}.volumes", "configmaps", volume.config_map.name


def operator_of(
    deployments: Iterable[Manifest] | UnreadableFact, namespace: str
) -> InstalledOperator | None:
    """Return the operator that watches the namespace; None without one."""
    operators = (
        () if isinstance(deployments, UnreadableFact) else map(operator_of_deployment, deployments)
    )
    return next((operator for operator in operators if operator.watches(namespace)), None)


def _pull_secrets(job: RLJob, role: str, operator: InstalledOperator | None) -> tuple[str, ...]:
    """Return the role's pull secrets in the operator's order, without duplicates."""
    operator_secrets = operator.pull_secrets if operator is not None else ()
    job_secrets = (secret.name for secret in _template(job, role).image_pull_secrets)
    return tuple(dict.fromkeys((*operator_secrets, *job_secrets)))


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
    template: PodTemplate | None = getattr(job.spec.pod_templates, role)
    return template or PodTemplate()
