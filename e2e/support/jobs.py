"""RLJobs of the end-to-end tests, and what is asked of a run that ended."""

import copy
import json
from pathlib import Path
from typing import Any

import yaml
from support.cluster import Cluster, Manifest

EXAMPLES = Path(__file__).parents[2] / "examples"
CLAIM = "runs"
STARTED_SECONDS = 300.0
"""From nothing to a driver that runs: images are on the nodes, and two cores start all of Ray."""


STORAGE = {"persistentVolumeClaim": {"claimName": CLAIM}}
THREADS = {"name": "OMP_NUM_THREADS", "value": "1"}
"""Of the driver, which makes the model; devices share the machine's processors."""
TWO_JOBS: dict[str, dict[str, Any]] = {
    "first": {"steps": 5000, "checkpoint": {"every": 5000, "storage": STORAGE}},
    "second": {"steps": 12, "algorithm": {"name": "rloo", "params": {"clipHigh": 0.28}}},
}
"""Two that train at once: by GRPO, as all other jobs do, and by RLOO. The first saves when it is asked to."""


def example(name: str, **accelerator: Any) -> Manifest:
    """An example as it is, but for the accelerators."""
    job = yaml.safe_load((EXAMPLES / name).read_text())
    job["spec"]["accelerator"] |= accelerator
    return dict(job)


def small(name: str, *, steps: int = 6, nodes: int = 1, **spec: Any) -> Manifest:
    """A job that learns little and ends soon; its runs lie on the namespace's claim."""
    job = example("quickstart.yaml", nodes=nodes, devicesPerNode=1)
    job["metadata"]["name"] = name
    job["spec"] |= {
        "steps": steps,
        "model": {"builtin": "tiny", "warmup": {"targetAccuracy": 0.1}},
        "algorithm": {"name": "grpo"},
        "checkpoint": {"every": 5, "storage": STORAGE},
    }
    job["spec"]["batch"] |= {"globalBatchSize": 8, "samplesPerPrompt": 4}
    # short words: the warm-up is shorter
    job["spec"]["data"]["reasoningGym"]["params"]["max_word_len"] = 4
    del job["spec"]["evaluation"]
    job["spec"] |= copy.deepcopy(spec)
    return job


def home_of(release: Cluster) -> str:
    """The node with the operator, where heads are to be: it stays. release: the operator's namespace."""
    found = release.objects("Pod", selector="app.kubernetes.io/component=operator")
    (operator,) = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return str(operator["spec"]["nodeName"])


def head_at(node: str) -> dict[str, Any]:
    """podTemplates of a job whose head is on that node."""
    return {"head": {"nodeSelector": {"kubernetes.io/hostname": node}}}


def condition(job: Manifest, kind: str) -> Manifest:
    """A condition of the job; {} where it is not there."""
    found = (job.get("status") or {}).get("conditions", [])
    return next((c for c in found if c["type"] == kind), {})


def holds(job: Manifest, kind: str) -> bool:
    return condition(job, kind).get("status") == "True"


def ended(job: Manifest) -> bool:
    return holds(job, "Succeeded") or holds(job, "Failed")


def step(job: Manifest) -> int:
    """Steps that the job says it has done."""
    return int(((job.get("status") or {}).get("progress") or {}).get("step", 0))


def events_of(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    """The run's events.jsonl, read in the head's pod."""
    text = cluster.run(cluster.head(job), "sh", "-c", f"cat /var/lib/rljob/*/{job}-*/events.jsonl")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def actors_of(cluster: Cluster, job: str) -> dict[str, list[str]]:
    """Names of the pods on which actors of each class live, by the class's name, as Ray knows them."""
    script = (
        "from ray.util.state import list_actors, list_nodes; import json;"
        "where = {n.node_id: n.node_ip for n in list_nodes(limit=1000)};"
        "print('ACTORS', json.dumps([(a.class_name, where[a.node_id])"
        " for a in list_actors(filters=[('state', '=', 'ALIVE')], limit=1000)]))"
    )
    text = cluster.run(cluster.head(job), "python", "-c", script)
    (line,) = [line for line in text.splitlines() if line.startswith("ACTORS ")]
    names = {p["status"]["podIP"]: p["metadata"]["name"] for p in cluster.pods(job)}
    found: dict[str, list[str]] = {}
    for kind, address in json.loads(line.removeprefix("ACTORS ")):
        found.setdefault(kind, []).append(names[address])
    return found


def wait_for_another_warehouse(cluster: Cluster, lost: str, *, seconds: float) -> None:
    """Until the pod of that name is gone and two warehouse pods are ready."""
    cluster.wait(
        "v1",
        "Pod",
        f"another warehouse pod than {lost} is ready",
        lambda pods: lost not in pods and sum(_is_warehouse(pod) for pod in pods.values()) == 2,
        seconds=seconds,
    )


def _is_warehouse(pod: Manifest) -> bool:
    """Whether it is a warehouse pod that is ready."""
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    ours = pod["metadata"].get("labels", {}).get("rljob.io/role") == "warehouse"
    return ours and conditions.get("Ready") == "True"


def wait_until_it_trains(cluster: Cluster, name: str) -> None:
    """Until its first step is done."""
    cluster.wait_for_job(
        name, f"{name} trains", lambda job: step(job) >= 1, seconds=STARTED_SECONDS + 180
    )
