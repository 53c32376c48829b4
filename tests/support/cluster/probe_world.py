"""A namespace in memory whose pods start as a test says, and shells in them that answer as it says."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from rljob_runtime.cli.doctor.cluster_facts import Manifest
from rljob_runtime.cli.doctor.probe.course import ProbeIO
from rljob_runtime.errors import ClusterError, NotThere

NOON = 1_772_366_400.0
LOOK: dict[str, Any] = {
    "time": NOON,
    "shm_bytes": 512 * 2**20,
    "disk": {"/var/lib/rljob": 200 * 2**30, "/tmp": 200 * 2**30},
    "writable": {"/var/lib/rljob": True, "/tmp": True},
    "interfaces": {"eth0": {"up": True, "mtu": 1500, "addresses": ["10.0.0.7"]}},
    "environment": {},
    "devices": 2,
    "device_addresses": None,
    "software": {"rljob": version("rljob"), "ray": "2.60.0", "torch": "2.10", "torch-npu": None},
}
RUNNING: Manifest = {
    "phase": "Running",
    "podIP": "10.0.0.7",
    "conditions": [{"type": "Ready", "status": "True"}],
}


def waiting(reason: str, message: str = "") -> Manifest:
    """Status of a pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "probe", "state": state}]}


def unplaced(message: str) -> Manifest:
    """Status of a pod that the scheduler has no node for."""
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


class ProbeWorld:
    """statuses: of pods by the end of their name, after `starts` seconds. refusal: of their creation. stays:
    whether pods outlive their deletion. annotations: of all pods, `annotated` seconds after the first.
    answers: of shells, by what they are asked."""

    def __init__(self, **statuses: Manifest) -> None:
        self.statuses = statuses
        self.starts = 0.0
        self.refusal = ""
        self.stays = False
        self.silent = False
        self.annotations: dict[str, str] = {}
        self.annotated = 0.0
        self.pods: dict[str, Manifest] = {}
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.told: list[str] = []
        self.now = 0.0

    def means(self) -> ProbeIO:
        """What a probe acts by here: its clock is this world's."""
        return ProbeIO(
            api=self,
            shell=self.shell,
            report=self.told.append,
            sleep=self.sleep,
            clock=lambda: self.now,
            wall=lambda: NOON + self.now,
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def request(
        self,
        verb: str,
        path: str,
        *,
        resource: str,
        name: str = "",
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Manifest:
        assert (resource, path.split("/")[4]) == ("pods", "research")
        if verb == "create":
            assert body is not None
            if self.refusal:
                raise ClusterError(self.refusal)
            self.pods[name] = body
            return body
        if verb == "list":
            return {"items": [self._pod(pod) for pod in self.pods.values()]}
        assert verb == "delete"
        if name not in self.pods:
            raise NotThere(name)
        if not self.stays:
            del self.pods[name]
        return {}

    def shell(self, pod: str, command: list[str]) -> tuple[int, bytes, str]:
        """The answer of the program in a pod, among what it says meanwhile."""
        assert pod in self.pods
        work, given = command[-2], json.loads(command[-1])
        self.asked.append((pod, work, given))
        if self.silent:
            return 1, b'{"stage": "start"}\n', "Traceback\nModuleNotFoundError: no psutil"
        result = LOOK if work == "look" else {"rank": given["rank"], "members": [0, 1]}
        lines = ({"stage": "start"}, {"result": result})
        return 0, "\n".join(map(json.dumps, lines)).encode(), ""

    def _pod(self, pod: Manifest) -> Manifest:
        rank = pod["metadata"]["name"].rpartition("-")[2]
        status = self.statuses.get(f"pod{rank}", RUNNING)
        ready = self.now >= self.starts
        told = self.annotations if self.now >= self.annotated else {}
        return pod | {
            "metadata": pod["metadata"] | {"annotations": told},
            "spec": pod["spec"] | ({"nodeName": f"node-{rank}"} if status is RUNNING else {}),
            "status": status if ready else waiting("ContainerCreating"),
        }
