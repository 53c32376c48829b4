"""Check what pods refer to and pull: Secrets, ConfigMaps, images, and failing image pulls. Pure."""

from collections.abc import Iterator

from rljob_api.topology.worker_pods import PULL_POLICY
from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, UnreadableFact, name_of
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, require, skipped, warn
from rljob_runtime.cli.doctor.need import ROLES, Need

REGISTRY_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
"""Types of Secrets that kubelets pull with; they ignore all others silently."""
PULL_FAILURES = ("ErrImagePull", "ImagePullBackOff")
SHOWN_CHARACTERS = 160
CREATE_SECRET = (
    "kubectl -n {} create secret docker-registry {} --from-file=$HOME/.docker/config.json, "
    "or with --docker-server, --docker-username and --docker-password"
)
PULLABLE = (
    "check that {} exists and that nodes may pull it: spec.image, the chart's image.*, "
    "imagePullSecrets"
)


def secrets(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """Yield a line for each reference that is missing, unusable or unavailable, and one for those that exist.
    Without a job the references are those of the operator."""
    present = []
    for reference, secret_type in facts.references.items():
        create_command = CREATE_SECRET.format(facts.namespace, reference.name)
        if isinstance(secret_type, UnreadableFact):
            yield skipped(f"{reference} of {reference.field}: {secret_type.why}")
        elif secret_type is None:
            text = f"namespace {facts.namespace} has no {reference}, which {reference.field} names"
            yield fail(
                text,
                create_command if reference.pulls else "make it before the job, or name another",
            )
        elif reference.pulls and secret_type not in REGISTRY_TYPES:
            text = f"{reference}, which {reference.field} names, is of type {secret_type}"
            remedy = f"kubectl -n {facts.namespace} delete secret {reference.name}, then {create_command}"
            yield fail(f"{text}; images are pulled with {REGISTRY_TYPES[0]} alone", remedy)
        else:
            present.append(str(reference))
    if present:
        yield ok(f"{', '.join(dict.fromkeys(present))}: there")


def images(facts: Facts, need: Need) -> Iterator[Finding]:
    """Check that all pods have one image, whose tag or digest names one build."""
    image_names = dict.fromkeys(need.images[role] for role in ROLES)
    if "" in image_names:
        raise Skip("the operator's image for jobs was not seen; --image names it")
    names = ", ".join(image_names)
    if len(image_names) > 1:
        text = f"pods of the job have several images: {names}"
        yield warn(text, "use one: rljob, Ray and Python must be the same in all pods")
    for image in image_names:
        if _is_mutable(image):
            text = f"{image} names no fixed build, and nodes pull it once ({PULL_POLICY})"
            yield warn(text, "name a tag of one build, or a digest")
    if len(image_names) == 1 and not any(map(_is_mutable, image_names)):
        yield ok(f"{names}, pulled where a node has it not ({PULL_POLICY})")


def _is_mutable(image: str) -> bool:
    """Return whether the name may refer to another build later."""
    name_and_tag = image.rpartition("/")[2]
    return "@" not in image and (":" not in name_and_tag or name_and_tag.endswith(":latest"))


def image_pulls(facts: Facts, need: Need) -> Iterator[Finding]:
    """Report pods of the namespace that cannot pull an image of the job: a line per image, with the longest
    cause."""
    failed: dict[str, dict[str, str]] = {}
    for pod in require(facts.namespace_pods):
        for image, cause in _failed_pulls(pod):
            if image in need.images.values():
                failed.setdefault(image, {})[name_of(pod)] = cause
    for image, pods in failed.items():
        name = max(pods, key=lambda pod: len(pods[pod]))
        waiting_pods = (
            f"{name} waits" if len(pods) == 1 else f"{name} and {len(pods) - 1} more wait"
        )
        yield warn(f"{waiting_pods} in vain for {image}: {pods[name]}", PULLABLE.format(image))


def _failed_pulls(pod: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (image, cause) of each failed pull. KubeRay's init container has the pod's image and comes
    first."""
    for kind, statuses in (
        ("initContainers", "initContainerStatuses"),
        ("containers", "containerStatuses"),
    ):
        images = {
            container["name"]: container["image"] for container in pod["spec"].get(kind) or []
        }
        for status in pod.get("status", {}).get(statuses) or []:
            state = status.get("state", {}).get("waiting") or {}
            if state.get("reason") in PULL_FAILURES:
                yield images[status["name"]], f"{state['reason']}: {_cause(state)}"


def _cause(state: Manifest) -> str:
    """Return the end of the kubelet's message, which contains the registry's answer."""
    cause = str(state.get("message") or "no reason is given").rpartition("desc = ")[2]
    return cause if len(cause) <= SHOWN_CHARACTERS else f"…{cause[-SHOWN_CHARACTERS:]}"
