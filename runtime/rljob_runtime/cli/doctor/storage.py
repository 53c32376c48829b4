"""Where checkpoints lie: the claims that the job's pods mount, else the default StorageClass. Pure."""

from collections.abc import Iterator

from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, Unseen, name_of
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, seen, skipped, warn
from rljob_runtime.cli.doctor.need import Need

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
MANY, ONE_POD = "ReadWriteMany", "ReadWriteOncePod"


def storage(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """One line a claim; without a claim, whether one could be made."""
    if need is not None and need.claims:
        for name in need.claims:
            yield _claim(facts, need, name)
        return
    if need is not None:
        given = need.job.spec.checkpoint.storage
        if given is not None and given.remote is not None:
            raise Skip(f"checkpoints go to {given.remote.uri}, which pods alone reach")
        text = "the job names no checkpoint.storage: if its head is lost, it begins anew"
        yield warn(text, "name a PersistentVolumeClaim or remote storage (docs/operator.md)")
        return
    yield _default_class(facts)


def _default_class(facts: Facts) -> Finding:
    there = seen(facts.storage_classes)
    classes = [name_of(one) for one in there]
    default = [name_of(one) for one in there if _is_default(one)]
    if default:
        return ok(f"default StorageClass {default[0]}, of {', '.join(sorted(classes))}")
    others = f"there are {', '.join(sorted(classes))}" if classes else "there is none"
    remedy = (
        "claims for checkpoints must name a class or a volume, or use checkpoint.storage.remote"
    )
    return warn(f"no default StorageClass; {others}", remedy)


def _claim(facts: Facts, need: Need, name: str) -> Finding:
    if isinstance(facts.claims, Unseen):
        return skipped(facts.claims.why)
    where = f"PersistentVolumeClaim {name}"
    found = next((claim for claim in facts.claims if name_of(claim) == name), None)
    if found is None:
        there = ", ".join(sorted(map(name_of, facts.claims))) or "none"
        text = f"namespace {facts.namespace} has no {where}; there are: {there}"
        return fail(text, "make the claim, or name another")
    modes = list(found.get("status", {}).get("accessModes") or found["spec"]["accessModes"])
    if modes == [ONE_POD]:
        text = f"{where} is {ONE_POD}, and {_pods(need, name)} mount it"
        return fail(text, f"use a claim with {MANY}")
    phase = found.get("status", {}).get("phase", "Pending")
    if phase != "Bound" and not _waits(facts, found):
        text = f"{where} is {phase}"
        return fail(text, f"kubectl -n {facts.namespace} describe pvc {name}")
    state = phase if phase == "Bound" else "bound with its first pod"
    if MANY in modes:
        return ok(f"{where}: {state}, {', '.join(modes)}")
    text = f"{where} is {', '.join(modes)}, and {_pods(need, name)} mount it, on several nodes"
    if need.nodes + need.spares > 1:
        return fail(text, f"use a claim with {MANY}")
    return warn(text.replace("on several nodes", "maybe on two nodes"), f"use {MANY}")


def _pods(need: Need, name: str) -> str:
    number = (need.nodes + need.spares) * sum(role != "head" for role in need.claims[name])
    return f"{number + ('head' in need.claims[name])} pods"


def _waits(facts: Facts, claim: Manifest) -> bool:
    """Whether the claim is bound only once a pod mounts it."""
    if isinstance(facts.storage_classes, Unseen):
        return True
    name = claim["spec"].get("storageClassName")
    return any(
        name_of(one) == name and one.get("volumeBindingMode") == "WaitForFirstConsumer"
        for one in facts.storage_classes
    )


def _is_default(storage_class: Manifest) -> bool:
    annotations = storage_class["metadata"].get("annotations") or {}
    return bool(annotations.get(DEFAULT_CLASS) == "true")
