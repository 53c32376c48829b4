"""Checks of the API server, the RLJob resource, the operator and KubeRay. Pure."""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from rljob_api.schema.crd import crd
from rljob_api.spec.rljob import GROUP, VERSION
from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, UnreadableFact
from rljob_runtime.cli.doctor.findings import Finding, fail, ok, require, warn
from rljob_runtime.cli.doctor.installed import InstalledOperator, operator_of_deployment, version_of
from rljob_runtime.cli.doctor.need import Need

MIN_KUBERNETES = (1, 29)
MIN_KUBERNETES_WITH_CLAIMS = (1, 34)
"""The minimum for accelerator.injection: dra."""
MIN_KUBERAY = (1, 6)
TESTED_KUBERAY = (1, 6)
INSTALL_CHART = "helm upgrade --install rljob helm/rljob -n rljob-system --create-namespace"
INSTALL_KUBERAY = "install KubeRay 1.6.2 (docs/install.md)"
SHOWN_FIELDS = 5


def api_server(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """Check that the API server answers and is new enough."""
    if isinstance(facts.version, UnreadableFact):
        yield fail(facts.version.why, "start the cluster, or use another --context")
        return
    text, server_version = f"Kubernetes {facts.version} ({facts.where})", version_of(facts.version)
    uses_claims = need is not None and need.accelerator.injection == "dra"
    minimum_version = MIN_KUBERNETES_WITH_CLAIMS if uses_claims else MIN_KUBERNETES
    if server_version is not None and server_version < minimum_version:
        minimum = ".".join(map(str, minimum_version))
        why = " with accelerator.injection: dra" if uses_claims else ""
        yield fail(f"{text} is older than {minimum}", f"rljob needs {minimum}{why}")
    else:
        yield ok(text)


def rljob_resource(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """Check that the RLJob resource is served in this client's version, with the fields of this client."""
    served = require(facts.rljob_versions)
    if VERSION not in served:
        text = f"{GROUP} is served as {', '.join(served)}" if served else "is not installed"
        yield fail(f"{text}; this client knows {GROUP}/{VERSION}", INSTALL_CHART)
        return
    if need is not None and need.job.api_version.rpartition("/")[2] not in served:
        text = f"{need.job.metadata.name} is {need.job.api_version}; the cluster serves {', '.join(served)}"
        yield fail(text, f"{INSTALL_CHART}, or write {GROUP}/{VERSION}, which has the same fields")
        return
    if not isinstance(installed_crd := facts.rljob_crd, dict):
        why = f"; its fields were not seen: {installed_crd.why}" if installed_crd else ""
        yield ok(f"{GROUP}/{VERSION} is served{why}")
        return
    client_fields, cluster_fields = _fields(_schema(crd())), _fields(_schema(installed_crd))
    missing, unknown = (
        sorted(client_fields - cluster_fields),
        sorted(cluster_fields - client_fields),
    )
    if missing:
        text = f"the cluster's RLJob lacks fields that this client knows: {_first_fields(missing)}"
        yield warn(text, f"{INSTALL_CHART}, from this client's release")
    elif unknown:
        text = f"the cluster's RLJob has fields that this client does not know: {_first_fields(unknown)}"
        yield warn(text, "install the rljob of the cluster's release here")
    else:
        yield ok(f"{GROUP}/{VERSION} with all fields of this client")


def operator(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """Check that exactly one operator watches the namespace, is ready and has this client's version."""
    operators = [operator_of_deployment(deployment) for deployment in require(facts.operators)]
    matching = [candidate for candidate in operators if candidate.watches(facts.namespace)]
    if not operators:
        yield fail("no Deployment of rljob's operator", INSTALL_CHART)
    elif not matching:
        names = "; ".join(
            f"{candidate.name} for {', '.join(candidate.namespaces)}" for candidate in operators
        )
        remedy = f"add {facts.namespace} to the chart's watchNamespaces, or use another --namespace"
        yield fail(f"none looks after namespace {facts.namespace}: {names}", remedy)
    elif len(matching) > 1:
        names = " and ".join(candidate.name for candidate in matching)
        remedy = "give each release watchNamespaces of its own"
        yield fail(f"{names} both look after namespace {facts.namespace}", remedy)
    else:
        yield _operator(matching[0])


def _operator(operator: InstalledOperator) -> Finding:
    namespace, _, name = operator.name.partition("/")
    text, client = f"{operator.name} {operator.version}".strip(), version("rljob")
    if operator.ready < 1:
        remedy = f"kubectl -n {namespace} describe pods; kubectl -n {namespace} logs deploy/{name}"
        return fail(f"{text} is not ready: {operator.ready} of {operator.replicas} pods", remedy)
    if operator.version and operator.version != client:
        return warn(f"{text}, this client {client}", "install both from one release")
    return ok(
        f"{text} is ready ({operator.ready} of {operator.replicas} pods), this client {client}"
    )


def kuberay(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """Check that KubeRay's operator is ready and new enough."""
    deployments = require(facts.kuberays)
    if not deployments:
        text = "no Deployment of KubeRay's operator is seen; it may run in another way"
        yield warn(text, f"if no RayCluster becomes ready, {INSTALL_KUBERAY}")
    for deployment in deployments:
        operator = operator_of_deployment(deployment)
        text, operator_version = (
            f"{operator.name} {operator.version}".strip(),
            version_of(operator.version),
        )
        if operator.ready < 1:
            namespace = operator.name.partition("/")[0]
            remedy = f"kubectl -n {namespace} describe pods"
            yield fail(f"{text} is not ready: {operator.ready} of {operator.replicas} pods", remedy)
        elif operator_version is not None and operator_version < MIN_KUBERAY:
            yield fail(f"{text} is older than 1.6", INSTALL_KUBERAY)
        elif operator_version is not None and operator_version > TESTED_KUBERAY:
            yield warn(f"{text} is ready; rljob is tested with 1.6.2", "nothing, if jobs run")
        else:
            yield ok(f"{text} is ready ({operator.ready} of {operator.replicas} pods)")


def ray_resource(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """Check that KubeRay's RayCluster is served and new enough."""
    if "v1" not in require(facts.ray_versions):
        yield fail("the cluster serves no ray.io/v1", INSTALL_KUBERAY)
        return
    installed_crd = facts.ray_crd if isinstance(facts.ray_crd, dict) else None
    fields = _fields(_schema(installed_crd, "v1")) if installed_crd else set()
    if fields and "spec.authOptions.secretName" not in fields:
        text = "ray.io/v1 lacks spec.authOptions.secretName, so its resources are older than 1.6"
        yield fail(text, f"{INSTALL_KUBERAY}; helm upgrade leaves the old CRDs: apply the new ones")
    else:
        yield ok("ray.io/v1" + (" of KubeRay 1.6 or newer" if fields else " is served"))


def _schema(manifest: Manifest, name: str = VERSION) -> Mapping[str, Any]:
    for served in manifest["spec"]["versions"]:
        if served["name"] == name:
            schema: Mapping[str, Any] = served.get("schema", {}).get("openAPIV3Schema", {})
            return schema
    return {}


def _fields(schema: Mapping[str, Any], path: str = "") -> set[str]:
    """Return the paths of all fields of the spec."""
    paths: set[str] = set()
    for key, property_schema in (schema.get("properties") or {}).items():
        member_path = f"{path}.{key}" if path else key
        if not path and key != "spec":
            continue
        paths |= {member_path} | _fields(property_schema, member_path)
    items = schema.get("items")
    return paths | (_fields(items, f"{path}[]") if items else set())


def _first_fields(fields: list[str]) -> str:
    more = len(fields) - SHOWN_FIELDS
    return ", ".join(fields[:SHOWN_FIELDS]) + (f" and {more} more" if more > 0 else "")
