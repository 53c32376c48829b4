"""The API server, the RLJob resource, the operator and KubeRay. Pure."""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from rljob_api.schema.crd import crd
from rljob_api.spec.rljob import GROUP, VERSION
from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, Unseen
from rljob_runtime.cli.doctor.findings import Finding, fail, ok, seen, warn
from rljob_runtime.cli.doctor.installed import Installed, installed, version_of
from rljob_runtime.cli.doctor.need import Need

LEAST_KUBERNETES = (1, 29)
LEAST_WITH_CLAIMS = (1, 34)
"""For accelerator.injection: dra."""
LEAST_KUBERAY = (1, 6)
TESTED_KUBERAY = (1, 6)
CHART = "helm upgrade --install rljob helm/rljob -n rljob-system --create-namespace"
KUBERAY = "install KubeRay 1.6.2 (docs/install.md)"
SHOWN_FIELDS = 5


def api_server(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """It answers, and is new enough."""
    if isinstance(facts.version, Unseen):
        yield fail(facts.version.why, "start the cluster, or use another --context")
        return
    text, found = f"Kubernetes {facts.version} ({facts.where})", version_of(facts.version)
    claims = need is not None and need.accelerator.injection == "dra"
    least = LEAST_WITH_CLAIMS if claims else LEAST_KUBERNETES
    if found is not None and found < least:
        wanted = ".".join(map(str, least))
        why = " with accelerator.injection: dra" if claims else ""
        yield fail(f"{text} is older than {wanted}", f"rljob needs {wanted}{why}")
    else:
        yield ok(text)


def rljob_resource(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """The RLJob resource is served in this client's version, with the fields that this client knows."""
    served = seen(facts.rljob_versions)
    if VERSION not in served:
        text = f"{GROUP} is served as {', '.join(served)}" if served else "is not installed"
        yield fail(f"{text}; this client knows {GROUP}/{VERSION}", CHART)
        return
    if need is not None and need.job.api_version.rpartition("/")[2] not in served:
        text = f"{need.job.metadata.name} is {need.job.api_version}; the cluster serves {', '.join(served)}"
        yield fail(text, f"{CHART}, or write {GROUP}/{VERSION}, which has the same fields")
        return
    if not isinstance(there := facts.rljob_crd, dict):
        why = f"; its fields were not seen: {there.why}" if there else ""
        yield ok(f"{GROUP}/{VERSION} is served{why}")
        return
    ours, theirs = _fields(_schema(crd())), _fields(_schema(there))
    missing, unknown = sorted(ours - theirs), sorted(theirs - ours)
    if missing:
        text = f"the cluster's RLJob lacks fields that this client knows: {_some(missing)}"
        yield warn(text, f"{CHART}, from this client's release")
    elif unknown:
        text = f"the cluster's RLJob has fields that this client does not know: {_some(unknown)}"
        yield warn(text, "install the rljob of the cluster's release here")
    else:
        yield ok(f"{GROUP}/{VERSION} with all fields of this client")


def operator(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """The operator that looks after the namespace is ready, and of this client's version."""
    there = [installed(deployment) for deployment in seen(facts.operators)]
    own = [one for one in there if one.looks_after(facts.namespace)]
    if not there:
        yield fail("no Deployment of rljob's operator", CHART)
    elif not own:
        names = "; ".join(f"{one.name} for {', '.join(one.namespaces)}" for one in there)
        remedy = f"add {facts.namespace} to the chart's watchNamespaces, or use another --namespace"
        yield fail(f"none looks after namespace {facts.namespace}: {names}", remedy)
    elif len(own) > 1:
        names = " and ".join(one.name for one in own)
        remedy = "give each release watchNamespaces of its own"
        yield fail(f"{names} both look after namespace {facts.namespace}", remedy)
    else:
        yield _operator(own[0])


def _operator(one: Installed) -> Finding:
    namespace, _, name = one.name.partition("/")
    text, client = f"{one.name} {one.version}".strip(), version("rljob")
    if one.ready < 1:
        remedy = f"kubectl -n {namespace} describe pods; kubectl -n {namespace} logs deploy/{name}"
        return fail(f"{text} is not ready: {one.ready} of {one.wanted} pods", remedy)
    if one.version and one.version != client:
        return warn(f"{text}, this client {client}", "install both from one release")
    return ok(f"{text} is ready ({one.ready} of {one.wanted} pods), this client {client}")


def kuberay(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """KubeRay's operator is ready, and new enough."""
    deployments = seen(facts.kuberays)
    if not deployments:
        text = "no Deployment of KubeRay's operator is seen; it may run in another way"
        yield warn(text, f"if no RayCluster becomes ready, {KUBERAY}")
    for deployment in deployments:
        one = installed(deployment)
        text, found = f"{one.name} {one.version}".strip(), version_of(one.version)
        if one.ready < 1:
            namespace = one.name.partition("/")[0]
            remedy = f"kubectl -n {namespace} describe pods"
            yield fail(f"{text} is not ready: {one.ready} of {one.wanted} pods", remedy)
        elif found is not None and found < LEAST_KUBERAY:
            yield fail(f"{text} is older than 1.6", KUBERAY)
        elif found is not None and found > TESTED_KUBERAY:
            yield warn(f"{text} is ready; rljob is tested with 1.6.2", "nothing, if jobs run")
        else:
            yield ok(f"{text} is ready ({one.ready} of {one.wanted} pods)")


def ray_resource(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """KubeRay's RayCluster is served, and new enough."""
    if "v1" not in seen(facts.ray_versions):
        yield fail("the cluster serves no ray.io/v1", KUBERAY)
        return
    known = facts.ray_crd if isinstance(facts.ray_crd, dict) else None
    fields = _fields(_schema(known, "v1")) if known else set()
    if fields and "spec.authOptions.secretName" not in fields:
        text = "ray.io/v1 lacks spec.authOptions.secretName, so its resources are older than 1.6"
        yield fail(text, f"{KUBERAY}; helm upgrade leaves the old CRDs: apply the new ones")
    else:
        yield ok("ray.io/v1" + (" of KubeRay 1.6 or newer" if fields else " is served"))


def _schema(manifest: Manifest, name: str = VERSION) -> Mapping[str, Any]:
    for served in manifest["spec"]["versions"]:
        if served["name"] == name:
            found: Mapping[str, Any] = served.get("schema", {}).get("openAPIV3Schema", {})
            return found
    return {}


def _fields(schema: Mapping[str, Any], path: str = "") -> set[str]:
    """Paths of all fields of the spec."""
    found: set[str] = set()
    for key, member in (schema.get("properties") or {}).items():
        here = f"{path}.{key}" if path else key
        if not path and key != "spec":
            continue
        found |= {here} | _fields(member, here)
    items = schema.get("items")
    return found | (_fields(items, f"{path}[]") if items else set())


def _some(fields: list[str]) -> str:
    more = len(fields) - SHOWN_FIELDS
    return ", ".join(fields[:SHOWN_FIELDS]) + (f" and {more} more" if more > 0 else "")
