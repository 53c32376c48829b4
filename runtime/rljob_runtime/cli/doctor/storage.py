"""Check the storage of checkpoints: the claims that the job's pods mount, else the default StorageClass.
Pure."""

from collections.abc import Iterator

from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, UnreadableFact, name_of
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, require, skipped, warn
from rljob_runtime.cli.doctor.need import Need

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
MANY, ONE_POD = "ReadWriteMany", "ReadWriteOncePod"


def storage(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """Yield one line per claim; without claims, whether one could be created."""
    if need is not None and need.claims:
        for name in need.claims:
            yield _claim(facts, need, name)
        return
    if need is not None:
        storage_spec = need.job.spec.checkpoint.storage
        if storage_spec is not None and storage_spec.remote is not None:
            raise Skip(f"checkpoints go to {storage_spec.remote.uri}, which pods alone reach")
        text = "the job names no checkpoint.storage: if its head is lost, it begins anew"
        yield warn(text, "name a PersistentVolumeClaim or remote storage (docs/operator.md)")
        return
    yield _default_class(facts)


def _default_class(facts: Facts) -> Finding:
    storage_classes = require(facts.storage_classes)
    classes = [name_of(storage_class) for storage_class in storage_classes]
    default = [
        name_of(storage_class) for storage_class in storage_classes if _is_default(storage_class)
    ]
    if default:
        return ok(f"default StorageClass {default[0]}, of {', '.join(sorted(classes))}")
    existing = f"there are {', '.join(sorted(classes))}" if classes else "there is none"
    remedy = (
        "claims for checkpoints must name a class or a volume, or use checkpoint.storage.remote"
    )
    return warn(f"no default StorageClass; {existing}", remedy)


def _claim(facts: Facts, need: Need, name: str) -> Finding:
    if isinstance(facts.claims, UnreadableFact):
        return skipped(facts.claims.why)
    claim_text = f"PersistentVolumeClaim {name}"
    pvc = next((claim for claim in facts.claims if name_of(claim) == name), None)
    if pvc is None:
        existing = ", ".join(sorted(map(name_of, facts.claims))) or "none"
        text = f"namespace {facts.namespace} has no {claim_text}; there are: {existing}"
        return fail(text, "make the claim, or name another")
    modes = list(pvc.get("status", {}).get("accessModes") or pvc["spec"]["accessModes"])
    if modes == [ONE_POD]:
        text = f"{claim_text} is {ONE_POD}, and {_pod_count(need, name)} mount it"
        return fail(text, f"use a claim with {MANY}")
    phase = pvc.get("status", {}).get("phase", "Pending")
    if phase != "Bound" and not _binds_on_first_mount(facts, pvc):
        text = f"{claim_text} is {phase}"
        return fail(text, f"kubectl -n {facts.namespace} describe pvc {name}")
    state = phase if phase == "Bound" else "bound with its first pod"
    if MANY in modes:
        return ok(f"{claim_text}: {state}, {', '.join(modes)}")
    text = f"{claim_text} is {', '.join(modes)}, and {_pod_count(need, name)} mount it, on several nodes"
    if need.nodes + need.spares > 1:
        return fail(text, f"use a claim with {MANY}")
    return warn(text.replace("on several nodes", "maybe on two nodes"), f"use {MANY}")


def _pod_count(need: Need, name: str) -> str:
    number = (need.nodes + need.spares) * sum(role != "head" for role in need.claims[name])
    return f"{number + ('head' in need.claims[name])} pods"


def _binds_on_first_mount(facts: Facts, claim: Manifest) -> bool:
    """Return whether the claim is bound only once a pod mounts it."""
    if isinstance(facts.storage_classes, UnreadableFact):
        return True
    name = claim["spec"].get("storageClassName")
    return any(
        name_of(storage_class) == name
        and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
        for storage_class in facts.storage_classes
    )


def _is_default(storage_class: Manifest) -> bool:
    annotations = storage_class["metadata"].get("annotations") or {}
    return bool(annotations.get(DEFAULT_CLASS) == "true")
