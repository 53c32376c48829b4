"""Chips of the emulated device plugin that break and heal."""

from support.cluster import Cluster
from support.tools import Tools

FAULTS = "/var/lib/rljob/faults"


def set_broken(cluster: Cluster, node: str, chips: str) -> None:
    """From now on exactly these chips of the node are broken; "" for none."""
    name = f"chips-{node}"
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "volumes": [{"name": "faults", "hostPath": {"path": FAULTS}}],
                "containers": [
                    {
                        "name": "write",
                        "image": Tools.from_environment().image("operator"),
                        "command": ["sh", "-c", f"echo '{chips}' > /faults/{node}"],
                        "securityContext": {"runAsUser": 0},
                        "volumeMounts": [{"name": "faults", "mountPath": "/faults"}],
                    }
                ],
            },
        }
    )
    cluster.wait(
        "v1",
        "Pod",
        f"chips of {node} are set",
        lambda pods: pods[name]["status"].get("phase") == "Succeeded",
        seconds=60,
    )
    cluster.kill_pod(name)
    cluster.wait("v1", "Pod", "the writer is gone", lambda pods: name not in pods, seconds=60)


def wait_for_chips(cluster: Cluster, node: str, number: int) -> None:
    """Until the node offers so many."""
    cluster.wait(
        "v1",
        "Node",
        f"{node} offers {number} chips",
        lambda nodes: nodes[node]["status"]["allocatable"]["huawei.com/Ascend910"] == str(number),
        seconds=60,
    )


def chips_of(cluster: Cluster, pod: str) -> set[str]:
    """Numbers of the chips that a worker pod has."""
    said = cluster.run(pod, "sh", "-c", "echo CHIPS $ASCEND_VISIBLE_DEVICES")
    (line,) = [line for line in said.splitlines() if line.startswith("CHIPS")]
    return set(line.removeprefix("CHIPS ").split(","))
