"""Kueue's CRDs as Kueue ships them, out of its Go module: downloaded once, into Go's own cache."""

import json
import shutil
import subprocess
import time
from pathlib import Path

from api_server import ApiServer
from programs import require

MODULE = "sigs.k8s.io/kueue@v0.19.0"
GROUP = "kueue.x-k8s.io"
OF_JOBS = ("workloads", "resourceflavors", "workloadpriorityclasses")
"""Those that the operator knows."""
OTHERS = (
    "admissionchecks", "clusterqueues", "cohorts", "localqueues", "multikueueclusters", "multikueueconfigs",
    "provisioningrequestconfigs", "topologies",
)  # fmt: skip
DOWNLOAD_SECONDS = 120.0


def make_kueues_kinds(server: ApiServer, kinds: tuple[str, ...] = OF_JOBS) -> None:
    """The API server knows them afterwards. Ends the test where there is no go, or the module is not to be
    had."""
    go = shutil.which("go")
    require("kueue", go, "Kueue's CRDs come with its Go module, and there is no go on PATH")
    folder = _downloaded(str(go)) / "config" / "components" / "crd" / "bases"
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for kind in kinds:
        crd = (folder / f"{GROUP}_{kind}.yaml").read_text()
        made = server.request("POST", crds, crd, content_type="application/yaml")
        assert made.code in (201, 409), made
    deadline = time.monotonic() + 60
    for kind in kinds:
        path = f"/apis/{GROUP}/v1beta2/{kind}"
        while server.request("GET", path, accept="*/*").code != 200:
            assert time.monotonic() < deadline, f"{kind} are not served after 60 s"
            time.sleep(0.05)


def _downloaded(go: str) -> Path:
    try:
        done = subprocess.run(
            [go, "mod", "download", "-json", MODULE],
            capture_output=True, text=True, cwd="/", timeout=DOWNLOAD_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        require("kueue", None, f"{MODULE} did not come within {DOWNLOAD_SECONDS:.0f} s")
        raise
    if done.returncode:
        require("kueue", None, f"{MODULE} is not to be had: {done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])
