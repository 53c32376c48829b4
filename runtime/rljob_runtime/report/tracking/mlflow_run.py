"""A run on an MLflow server, through its REST API, which needs no package."""

import base64
import json
import os
import time as clock
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from rljob_api.spec.tracking import MLflow
from rljob_runtime.report.tracking.tracker import TrackedRun

ID_TAG = "rljob.run"
MAX_METRICS, MAX_TEXT = 1000, 500
"""Limits of the metrics in a request and of the characters in a parameter."""
STATUSES = {"succeeded": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
TOKEN, USER, PASSWORD = (
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
)


class MLflowRun:
    """The MLflow run that is tagged with the TrackedRun's id, created if there is none. seconds: request
    timeout."""

    def __init__(self, section: MLflow, run: TrackedRun, *, seconds: float) -> None:
        self._base = f"{section.tracking_uri.rstrip('/')}/api/2.0/mlflow"
        self._seconds = seconds
        experiment = self._experiment(section.experiment)
        self._run_id = self._find_run(experiment, run.id) or self._create_run(experiment, run)
        self._request("runs/update", {"run_id": self._run_id, "status": "RUNNING"})

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        """Send metrics with their step and time."""
        common = {"step": step, "timestamp": _milliseconds(time)}
        rows = [{"key": name, "value": value, **common} for name, value in metrics.items()]
        for start in range(0, len(rows), MAX_METRICS):
            batch = rows[start : start + MAX_METRICS]
            self._request("runs/log-batch", {"run_id": self._run_id, "metrics": batch})

    def close(self, status: str) -> None:
        """Set the run's status and end time."""
        ended = {"status": STATUSES[status], "end_time": _milliseconds(clock.time())}
        self._request("runs/update", {"run_id": self._run_id, **ended})

    def _experiment(self, name: str) -> str:
        """Return the experiment's id, and create the experiment if it does not exist.

        A user who may not create one may still use an existing one; another process may create it at the same
        time.
        """
        query = f"experiments/get-by-name?{urllib.parse.urlencode({'experiment_name': name})}"
        try:
            return str(self._request(query)["experiment"]["experiment_id"])
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
        try:
            return str(self._request("experiments/create", {"name": name})["experiment_id"])
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise
        return str(self._request(query)["experiment"]["experiment_id"])

    def _find_run(self, experiment: str, run_id: str) -> str | None:
        request = {"experiment_ids": [experiment], "filter": f"tags.`{ID_TAG}` = '{run_id}'"}
        runs = self._request("runs/search", request).get("runs", [])
        return str(runs[0]["info"]["run_id"]) if runs else None

    def _create_run(self, experiment: str, run: TrackedRun) -> str:
        request = {
            "experiment_id": experiment,
            "run_name": run.name,
            "start_time": _milliseconds(clock.time()),
            "tags": [{"key": ID_TAG, "value": run.id}],
        }
        run_id = str(self._request("runs/create", request)["run"]["info"]["run_id"])
        facts = [{"key": name, "value": str(v)[:MAX_TEXT]} for name, v in run.facts.items()]
        self._request("runs/log-batch", {"run_id": run_id, "params": facts})
        return run_id

    def _request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **_authorization()}
        request = urllib.request.Request(f"{self._base}/{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=self._seconds) as answer:
            return dict(json.load(answer))


def _authorization() -> dict[str, str]:
    if token := os.environ.get(TOKEN):
        return {"Authorization": f"Bearer {token}"}
    if user := os.environ.get(USER):
        pair = f"{user}:{os.environ.get(PASSWORD, '')}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    return {}


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds)
