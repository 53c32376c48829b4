"""What pods name and pull: Secrets and ConfigMaps, images, and who waits for an image in vain. Pure."""

from collections.abc import Iterator

from rljob_api.topology.worker_pods import PULL_POLICY
from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, Unseen, name_of
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, seen, skipped, warn
from rljob_runtime.cli.doctor.need import ROLES, Need

REGISTRY_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
"""Types of Secrets with which kubelets pull; they pass over all others without a word."""
VAIN = ("ErrImagePull", "ImagePullBackOff")
SHOWN_CHARACTERS = 160
MAKE = (
    "kubectl -n {} create secret docker-registry {} --from-file=$HOME/.docker/config.json, "
    "or with --docker-server, --docker-username and --docker-password"
)
PULLABLE = (
    "check that {} exists and that nodes may pull it: spec.image, the chart's image.*, "
    "imagePullSecrets"
)


def secrets(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """A line for each that is missing, of no use or could not be looked for; else one for all. Without a job
    those of the operator."""
    there = []
    for reference, kind in facts.references.items():
        make = MAKE.format(facts.namespace, reference.name)
        if isinstance(kind, Unseen):
            yield skipped(f"{reference} of {reference.field}: {kind.why}")
        elif kind is None:
            text = f"namespace {facts.namespace} has no {reference}, which {reference.field} names"
            yield fail(text, make if reference.pulls else "make it before the job, or name another")
        elif reference.pulls and kind not in REGISTRY_TYPES:
            text = f"{reference}, which {reference.field} names, is of type {kind}"
            remedy = f"kubectl -n {facts.namespace} delete secret {reference.name}, then {make}"
            yield fail(f"{text}; images are pulled with {REGISTRY_TYPES[0]} alone", remedy)
        else:
            there.append(str(reference))
    if there:
        yield ok(f"{', '.join(dict.fromkeys(there))}: there")


def images(facts: Facts, need: Need) -> Iterator[Finding]:
    """One image for all pods, with a tag that stands for one build."""
    given = dict.fromkeys(need.images[role] for role in ROLES)
    if "" in given:
        raise Skip("the operator's image for jobs was not seen; --image names it")
    named = ", ".join(given)
    if len(given) > 1:
        text = f"pods of the job have several images: {named}"
        yield warn(text, "use one: rljob, Ray and Python must be the same in all pods")
    for image in given:
        if _moves(image):
            text = f"{image} names no fixed build, and nodes pull it once ({PULL_POLICY})"
            yield warn(text, "name a tag of one build, or a digest")
    if len(given) == 1 and not any(map(_moves, given)):
        yield ok(f"{named}, pulled where a node has it not ({PULL_POLICY})")


def _moves(image: str) -> bool:
    """Whether the name may stand for another build tomorrow."""
    last = image.rpartition("/")[2]
    return "@" not in image and (":" not in last or last.endswith(":latest"))


def waiting(facts: Facts, need: Need) -> Iterator[Finding]:
    """Pods of the namespace that cannot pull an image of the job: a line an image, with the fullest cause."""
    failed: dict[str, dict[str, str]] = {}
    for pod in seen(facts.own_pods):
        for image, why in _failed_pulls(pod):
            if image in need.images.values():
                failed.setdefault(image, {})[name_of(pod)] = why
    for image, pods in failed.items():
        name = max(pods, key=lambda pod: len(pods[pod]))
        who = f"{name} waits" if len(pods) == 1 else f"{name} and {len(pods) - 1} more wait"
        yield warn(f"{who} in vain for {image}: {pods[name]}", PULLABLE.format(image))


def _failed_pulls(pod: Manifest) -> Iterator[tuple[str, str]]:
    """Images, and why each is not pulled. KubeRay's init container has the pod's image and comes first."""
    for kind, statuses in (
        ("initContainers", "initContainerStatuses"),
        ("containers", "containerStatuses"),
    ):
        images = {one["name"]: one["image"] for one in pod["spec"].get(kind) or []}
        for status in pod.get("status", {}).get(statuses) or []:
            state = status.get("state", {}).get("waiting") or {}
            if state.get("reason") in VAIN:
                yield images[status["name"]], f"{state['reason']}: {_cause(state)}"


def _cause(state: Manifest) -> str:
    """The end of the kubelet's message, where the registry's answer is."""
    cause = str(state.get("message") or "no reason is given").rpartition("desc = ")[2]
    return cause if len(cause) <= SHOWN_CHARACTERS else f"…{cause[-SHOWN_CHARACTERS:]}"
