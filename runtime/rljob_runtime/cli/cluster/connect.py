"""Connect to the cluster: by a kubeconfig as kubectl reads it, or by a pod's service account."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rljob_runtime.errors import ClusterError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

DEFAULT_KUBECONFIG = "~/.kube/config"
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
INSTALL = "the Kubernetes client is not installed; pip install 'rljob[cluster]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A client of one API server. where: context and address, for messages."""

    client: "ApiClient"
    namespace: str
    where: str


def connect(
    environment: Mapping[str, str], *, context: str | None, namespace: str | None
) -> Connection:
    """Connect to the cluster that kubectl would use. namespace: default, the context's. Raises
    ClusterError."""
    try:
        from kubernetes import client, config
    except ImportError as missing:
        raise ClusterError(INSTALL) from missing
    configuration = client.Configuration()
    configuration.retries = False  # a failed call reports its error immediately
    paths = environment.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    files = [path for path in paths.split(os.pathsep) if path and Path(path).expanduser().exists()]
    try:
        if files:
            name, default_namespace = _context(config, paths, context)
            config.load_kube_config(paths, context=name, client_configuration=configuration)
            where = f"context {name}, {configuration.host}"
        elif context is None and "KUBERNETES_SERVICE_HOST" in environment:
            config.load_incluster_config(client_configuration=configuration)
            default_namespace = (
                POD_NAMESPACE.read_text().strip() if POD_NAMESPACE.exists() else None
            )
            where = f"this pod's cluster, {configuration.host}"
        else:
            raise ClusterError(
                f"no kubeconfig: {paths} does not exist; set KUBECONFIG to the file that kubectl uses"
            )
    except (
        config.ConfigException,
        yaml.YAMLError,
        OSError,
        AttributeError,
        TypeError,
        KeyError,
        ValueError,
    ) as broken:
        why = " ".join(str(broken).split())
        raise ClusterError(f"kubeconfig {paths} cannot be used: {why}") from broken
    return Connection(
        client=client.ApiClient(configuration),
        namespace=namespace or default_namespace or "default",
        where=where,
    )


def suggestions(name: str, known: list[str]) -> str:
    """Return the end of a message: `; did you mean a or b?`, else the known names."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    shown = ", ".join(sorted(known)[:10])
    return f"; there are {shown}" + (" and others" if len(known) > 10 else "") if known else ""


def _context(config: Any, paths: str, requested: str | None) -> tuple[str, str | None]:
    """Return (name, namespace) of the requested context, or of the current one."""
    contexts, current = config.list_kube_config_contexts(paths)
    known = {context["name"]: context["context"] for context in contexts}
    name = requested or current["name"]
    if name not in known:
        raise ClusterError(
            f"kubeconfig {paths} has no context {name!r}{suggestions(name, list(known))}"
        )
    return name, known[name].get("namespace")
