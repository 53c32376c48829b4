"""Select the pods of a probe: from the job's need, else from what nodes offer. Pure."""

from dataclasses import dataclass

from rljob_api.spec.pods import parse_amount
from rljob_api.spec.section import parse_quantity
from rljob_api.topology.worker_pods import EMULATED_REQUESTS, HOST_GIB, is_ascend
from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, UnreadableFact, name_of
from rljob_runtime.cli.doctor.devices import offers_of
from rljob_runtime.cli.doctor.findings import Skip
from rljob_runtime.cli.doctor.installed import InstalledOperator
from rljob_runtime.cli.doctor.need import Need

MOST_PODS = 16
"""Limit of pods for a probe without a job and without --nodes."""
DEFAULT_RESOURCE = "huawei.com/Ascend910"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherImage:
    """An image that worker pods do not use. pod: the one that pulls it, on a node where the role may run."""

    pod: str
    role: str
    image: str
    pull_secrets: tuple[str, ...]
    selector: dict[str, str]
    tolerations: list[Manifest]

    def __str__(self) -> str:
        return f"{self.image} of the {self.role}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """The identical pods of a probe, and one more for each of `images`. pods: number of identical pods, each
    on a separate node. devices: of `resource`, per pod. shm_bytes: size of /dev/shm, as KubeRay sets it.
    host_driver: whether the node's driver is mounted. seconds: deadline of the wait for pods."""

    name: str
    namespace: str
    pods: int
    image: str
    ascend: bool
    seconds: float
    resource: str | None = None
    devices: int = 0
    requests: dict[str, str]
    limits: dict[str, str]
    shm_bytes: int
    selector: dict[str, str]
    tolerations: list[Manifest]
    env: list[Manifest]
    pull_secrets: tuple[str, ...] = ()
    claim: str | None = None
    host_driver: bool = False
    scheduler: str | None = None
    images: tuple[OtherImage, ...] = ()

    @property
    def ranks(self) -> list[str]:
        """Return the names of the identical pods, by rank."""
        return [f"{self.name}-{rank}" for rank in range(self.pods)]

    @property
    def pod_names(self) -> list[str]:
        """Return the names of all pods, the identical ones first."""
        return [*self.ranks, *(other.pod for other in self.images)]

    def __str__(self) -> str:
        devices = f" with {self.devices} {self.resource}" if self.resource else ""
        number = "1 pod" if self.pods == 1 else f"{self.pods} pods"
        more = "".join(f", and 1 with {other}" for other in self.images)
        return (
            f"{number} {self.name}-* in namespace {self.namespace}, of {self.image}{devices}{more}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command line. token: suffix of the pods' names. nodes, image: None for the default."""

    token: str
    seconds: float
    nodes: int | None = None
    image: str | None = None


def plan_of(
    facts: Facts, need: Need | None, operator: InstalledOperator | None, options: Options
) -> ProbePlan:
    """Return the plan of the probe. Raises Skip where no pods can be created."""
    if need is not None:
        return _plan_for_job(facts, need, options)
    resource, devices, nodes = _free_devices(facts, operator)
    ascend = resource is not None and operator is not None and not operator.device_plugin
    image = options.image or _image(operator, ascend=ascend)
    return ProbePlan(
        name=f"rljob-doctor-{options.token}",
        namespace=facts.namespace,
        pods=options.nodes or nodes,
        image=image,
        ascend=ascend,
        seconds=options.seconds,
        resource=resource,
        devices=devices,
        requests=EMULATED_REQUESTS,
        limits={},
        shm_bytes=parse_quantity(EMULATED_REQUESTS["memory"]),
        selector={},
        tolerations=[],
        env=[],
        pull_secrets=operator.pull_secrets if operator is not None else (),
    )


def _plan_for_job(facts: Facts, need: Need, options: Options) -> ProbePlan:
    accelerator = need.accelerator
    ascend = is_ascend(accelerator)
    if accelerator.injection == "dra":
        raise Skip("a probe makes no resource claims (accelerator.injection: dra)")
    image = options.image or need.images["worker"]
    if not image:
        raise Skip("the operator's image for jobs was not seen; --image names it")
    resources = need.worker.resources
    requests = dict(resources.requests) if resources is not None else {}
    limits = dict(resources.limits) if resources is not None else {}
    memory = limits.get("memory") or requests.get("memory")
    if ascend and memory is None:
        memory = f"{accelerator.devices_per_node * HOST_GIB}Gi"
    name = f"rljob-doctor-{options.token}"
    return ProbePlan(
        name=name,
        namespace=facts.namespace,
        pods=options.nodes or need.nodes,
        image=image,
        ascend=ascend,
        seconds=options.seconds,
        resource=need.resource,
        devices=accelerator.devices_per_node if need.resource else 0,
        requests={key: amount for key, amount in EMULATED_REQUESTS.items() if key not in limits}
        | requests,
        limits=limits,
        shm_bytes=int(parse_amount(memory or EMULATED_REQUESTS["memory"])),
        selector=need.selector,
        tolerations=need.tolerations,
        env=[v.model_dump(by_alias=True, exclude_none=True) for v in need.worker.env],
        pull_secrets=need.pull_secrets["worker"],
        claim=_bound_claim(facts, need),
        host_driver=accelerator.injection == "hostPath",
        scheduler="volcano" if need.job.spec.scheduling.scheduler == "volcano" else None,
        images=() if options.image else _other_images(need, name),
    )


def _other_images(need: Need, name: str) -> tuple[OtherImage, ...]:
    """Return the images of the head and the warehouses, where they are known and differ from the workers'.
    Warehouses run on the nodes of workers."""
    constraints = {"head": ({}, ("head",)), "warehouse": (need.selector, ("worker", "warehouse"))}
    return tuple(
        OtherImage(
            pod=f"{name}-{role}",
            role=role,
            image=need.images[role],
            pull_secrets=need.pull_secrets[role],
            selector=selector | need.template(role).node_selector,
            tolerations=need.tolerations_of(*roles),
        )
        for role, (selector, roles) in constraints.items()
        if need.images[role] not in ("", need.images["worker"])
    )


def _bound_claim(facts: Facts, need: Need) -> str | None:
    """Return the claim of the runs' folder if it is bound: a probe must not bind it."""
    storage = need.job.spec.checkpoint.storage
    claim = storage.persistent_volume_claim if storage is not None else None
    if claim is None or isinstance(facts.claims, UnreadableFact):
        return None
    bound_claims = [name_of(c) for c in facts.claims if c.get("status", {}).get("phase") == "Bound"]
    return claim.claim_name if claim.claim_name in bound_claims else None


def _free_devices(facts: Facts, operator: InstalledOperator | None) -> tuple[str | None, int, int]:
    """Return (resource, devices per pod, nodes) without a job: one device of each node that has free ones."""
    if isinstance(facts.nodes, UnreadableFact):
        return None, 0, 1
    offers = [offer for offer in offers_of(facts, DEFAULT_RESOURCE, None) if not offer.unfit]
    free = [offer for offer in offers if offer.free > 0]
    if free:
        return DEFAULT_RESOURCE, 1, min(len(free), MOST_PODS)
    if not offers:
        raise Skip("no node is ready and open to pods")
    return None, 0, min(len(offers), MOST_PODS)


def _image(operator: InstalledOperator | None, *, ascend: bool) -> str:
    image = ""
    if operator is not None:
        image = operator.ascend_image if ascend else operator.runtime_image
    if not image:
        raise Skip("the operator's image for jobs was not seen; --image names it")
    return image
