"""Events about RLJobs, as `kubectl describe` shows them. Posted by `apply` through `Kube.create_event`."""

import hashlib
from datetime import UTC, datetime
from typing import Literal

from rljob_operator.kube.kube_answers import Manifest

REPORTER = "rljob-operator"
NOTE_BYTES = 1024  # the API server refuses longer ones


def event_about(
    rljob: Manifest,
    *,
    type: Literal["Normal", "Warning"],
    reason: str,
    message: str,
    timestamp: datetime,
) -> Manifest:
    """Return the event. The same event about the same job has the same name, so that it is counted and not
    repeated."""
    metadata = rljob["metadata"]
    note = message.encode()[:NOTE_BYTES].decode(errors="ignore")
    news = "\0".join((metadata["uid"], type, reason, note))
    time = timestamp.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": metadata["namespace"],
            "name": f"{metadata['name']}.{hashlib.sha256(news.encode()).hexdigest()[:16]}",
        },
        "involvedObject": {
            "apiVersion": rljob["apiVersion"],
            "kind": rljob["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": type,
        "reason": reason,
        "message": note,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "reportingInstance": REPORTER,
    }
