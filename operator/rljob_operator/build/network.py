"""The NetworkPolicy of a job: its pods connect to each other, the operator to Ray's dashboard and the driver.

Ray's token is sent unencrypted, so no other client may reach the pods, even with a token.
"""

from rljob_operator.build import ports
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import (
    OPERATOR_LABELS,
    Manifest,
    child_name,
    metadata,
    pod_selector,
)
from rljob_operator.settings import Settings

NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def network_policy(identity: JobIdentity, settings: Settings) -> Manifest:
    """Return the NetworkPolicy. Within the job every port is open: dock and HCCL take free ones."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(identity, child_name(identity), component="network"),
        "spec": {
            **_job_pods(identity),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [_job_pods(identity)]}, *_ingress(settings)],
            "egress": [{"to": [_job_pods(identity)]}, *_egress(settings)],
        },
    }


def _job_pods(identity: JobIdentity) -> Manifest:
    return {"podSelector": {"matchLabels": pod_selector(identity)}}


def _ingress(settings: Settings) -> list[Manifest]:
    operator = _namespace(settings.operator_namespace)
    operator["podSelector"] = {"matchLabels": dict(OPERATOR_LABELS)}
    rules: list[Manifest] = [
        {"from": [operator], "ports": [_port("TCP", ports.DASHBOARD), _port("TCP", ports.STATUS)]}
    ]
    if settings.metrics_namespace is not None:
        reader = _namespace(settings.metrics_namespace)
        figures = [_port("TCP", ports.METRICS), _port("TCP", ports.STATUS)]
        rules.append({"from": [reader], "ports": figures})
    return rules


def _egress(settings: Settings) -> list[Manifest]:
    rules: list[Manifest] = [{"ports": [_port("UDP", ports.DNS), _port("TCP", ports.DNS)]}]
    if settings.egress_cidrs:
        rules.append({"to": [{"ipBlock": {"cidr": cidr}} for cidr in settings.egress_cidrs]})
    return rules


def _namespace(name: str) -> Manifest:
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: name}}}


def _port(protocol: str, port: int) -> Manifest:
    return {"protocol": protocol, "port": port}
