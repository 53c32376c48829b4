import pytest
import yaml
from kube_manifests import NOW
from kube_server import KubeServer
from typer.testing import CliRunner

from rljob_runtime.cli.cluster import cluster_commands as commands
from rljob_runtime.cli.main import app


@pytest.fixture
def server():
    server = KubeServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kubeconfig(tmp_path):
    """kubeconfig(url) writes a file with two contexts, of which `lab` is the current."""

    def write(url):
        lab = {"cluster": "lab", "user": "me", "namespace": "research"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {"token": "the-token"}}],
            "contexts": [
                {"name": "lab", "context": lab},
                {"name": "lab-default", "context": {"cluster": "lab", "user": "me"}},
            ],
            "current-context": "lab",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


@pytest.fixture
def rljob(server, kubeconfig, tmp_path, monkeypatch):
    """rljob("status", "words") as typed, in an empty folder, at noon, against the server."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(server.url)))
    monkeypatch.setattr(commands, "_unix_seconds", lambda: NOW)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))
