"""A job, its pods and its events as an API server tells of them."""

import copy
from datetime import UTC, datetime
from typing import Any

from rljob_api.topology.pod_names import CLUSTER_LABEL, JOB_UID_LABEL, ROLE_LABEL

Manifest = dict[str, Any]

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()
UID = "0b9dd3a5-2d4c-4e6f-8a51-7c6f1d2e3f40"
FOLDER = "/var/lib/rljob/research/words-0b9dd3a5"


def at(clock: str) -> str:
    return f"2026-03-01T{clock}Z"


def condition(kind: str, status: str, reason: str, clock: str, message: str = "") -> Manifest:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(clock),
    }


JOB: Manifest = {
    "apiVersion": "rljob.io/v1alpha1",
    "kind": "RLJob",
    "metadata": {
        "name": "words",
        "namespace": "research",
        "uid": UID,
        "resourceVersion": "100",
        "creationTimestamp": at("11:40:00"),
    },
    "spec": {
        "steps": 140,
        "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "runs"}}},
    },
    "status": {
        "phase": "Running",
        "startTime": at("11:40:01"),
        "attempt": 1,
        "restarts": 1,
        "devices": "16/16",
        "progress": {
            "step": 35,
            "totalSteps": 140,
            "reward": 0.6125,
            "tokensPerSecond": 3649,
            "etaSeconds": 754,
        },
        "lastCheckpoint": {
            "step": 30,
            "path": f"{FOLDER}/checkpoints/step-30",
            "time": at("11:58:30"),
        },
        "rayCluster": {"name": "words-1", "submissionId": "rljob-0b9dd3a5-1"},
        "conditions": [
            condition("ClusterReady", "True", "PodsReady", "11:49:00"),
            condition("Running", "True", "Running", "11:50:00"),
            condition("Validated", "True", "Valid", "11:40:01"),
        ],
        "failures": [
            {
                "attempt": 0,
                "reason": "HeadLost",
                "message": "the head's container or pod is another one than the driver was started in",
                "time": at("11:48:00"),
                "node": "node-a",
                "exitCode": 137,
            }
        ],
    },
}


def pod(role: str, index: int = 0, *, cluster: str = "words-1", **changes: Any) -> Manifest:
    """A pod that is ready; changes: of its status."""
    running = {"name": f"ray-{role}", "restartCount": 0, "state": {"running": {}}}
    return {
        "metadata": {
            "name": f"{cluster}-{role}-{index}",
            "labels": {JOB_UID_LABEL: UID, ROLE_LABEL: role, CLUSTER_LABEL: cluster},
            "creationTimestamp": at("11:48:30"),
        },
        "spec": {} if changes.get("phase") == "Pending" else {"nodeName": f"node-{index}"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [running],
        }
        | changes,
    }


UNSCHEDULED: dict[str, Any] = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "message": "0/3 nodes are available: 3 Insufficient huawei.com/Ascend910.",
        }
    ],
    "containerStatuses": [],
}
PODS = [pod("worker", 1, **UNSCHEDULED), pod("worker", 0), pod("head"), pod("warehouse")]
EVENTS = [
    {
        "metadata": {"creationTimestamp": at("11:49:00")},
        "type": "Normal",
        "reason": "PodsReady",
        "message": "PodsReady",
        "lastTimestamp": at("11:49:00"),
        "count": 2,
    },
    {
        "metadata": {"creationTimestamp": at("11:48:00")},
        "type": "Normal",
        "reason": "HeadLost",
        "message": "first line\nsecond \x1b[31mline",
        "lastTimestamp": None,
        "eventTime": None,
    },
]


def job(**status: Any) -> Manifest:
    """The job with these fields of its status changed."""
    changed = copy.deepcopy(JOB)
    changed["status"] |= status
    return changed


def ended(how: str, **status: Any) -> Manifest:
    """The job once it has Succeeded or Failed."""
    return job(
        phase=how,
        completionTime=at("11:59:00"),
        conditions=[condition(how, "True", "StepsDone", "11:59:00", "as said")],
        **status,
    )
