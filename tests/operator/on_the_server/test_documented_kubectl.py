"""What the documentation tells kubectl about RLJobs, on a real API server."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from api_server import ApiServer
from documented import PAGES, ROOT, Command, blocks_of, code_of, commands_in, commands_of
from programs import require

JOB = "separated"
FENCED = [command for page in PAGES for block in blocks_of(page) for command in commands_of(block)]
WITHIN = [
    command
    for page in PAGES
    for code in code_of(page)
    if code.startswith("kubectl ") and len(code.split()) > 2
    for command in commands_in(code, page=page)
]
SPOKEN_OF = ("rljob", "rljobs", "rljobs.rljob.io", "examples/quickstart.yaml")
COMMANDS = {
    command.words: command
    for command in (*FENCED, *WITHIN)
    if command.words[0] == "kubectl" and set(SPOKEN_OF) & set(command.words)
}
BESIDE = {
    "delete": ["--dry-run=server"],  # the kind and other tests' jobs stay
    "scale": ["--dry-run=server"],
}


@pytest.fixture
def kubectl(
    server: ApiServer, namespace: str, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """kubectl("get", "rljobs"), in the test's namespace."""
    places = os.pathsep.join((os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", "")))
    program = shutil.which("kubectl", path=places)
    require("kubectl", program, "kubectl is neither in $KUBEBUILDER_ASSETS nor on PATH")
    config = yaml.safe_load(server.kubeconfig().read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    user = [f"--kubeconfig={tmp_path / 'kubeconfig'}", "--request-timeout=30s"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *user, *words], cwd=ROOT, capture_output=True, text=True, timeout=60
        )

    return run


@pytest.mark.parametrize("command", COMMANDS.values(), ids=str)
def test_a_command_about_rljobs_is_answered(
    command: Command, kubectl: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert kubectl("apply", "-f", f"examples/{JOB}.yaml").returncode == 0
    names = {"NAME": JOB, "N": "2"}
    words = [names.get(word, word) for word in command.words[1:] if word != "--watch"]

    done = kubectl(*words, *BESIDE.get(words[0], []))

    assert done.returncode == 0, done.stderr
    assert done.stdout or done.stderr
