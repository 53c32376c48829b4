"""A run on an MLflow server, by its REST API, which needs no package."""

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
"""Of one request; of a parameter."""
STATUSES = {"succeeded": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
TOKEN, USER, PASSWORD = (
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
)


class MLflowRun:
    """The run that has the TrackedRun's id as a tag; made where there is none. seconds: of a request."""

    def __init__(self, section: MLflow, run: TrackedRun, *, seconds: float) -> None:
        self._base = f"{section.tracking_uri.rstrip('/')}/api/2.0/mlflow"
        self._seconds = seconds
        experiment = self._experiment(section.experiment)
        self._run_id = self._found(experiment, run.id) or self._made(experiment, run)
        self._ask("runs/update", {"run_id": self._run_id, "status": "RUNNING"})

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        """Metrics with their step and time."""
        common = {"step": step, "timestamp": _milliseconds(time)}
        rows = [{"key": name, "value": value, **common} for name, value in metrics.items()]
        for start in range(0, len(rows), MAX_METRICS):
            batch = rows[start : start + MAX_METRICS]
            self._ask("runs/log-batch", {"run_id": self._run_id, "metrics": batch})

    def close(self, status: str) -> None:
        """The run's status and end."""
        ended = {"status": STATUSES[status], "end_time": _milliseconds(clock.time())}
        self._ask("runs/update", {"run_id": self._run_id, **ended})

    def _experiment(self, name: str) -> str:
        """Its id. Who may not make one may still use what is there; another process may make it at the same
        time."""
        query = f"experiments/get-by-name?{urllib.parse.urlencode({'experiment_name': name})}"
        try:
            return str(self._ask(query)["experiment"]["experiment_id"])
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
        try:
            return str(self._ask("experiments/create", {"name": name})["experiment_id"])
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise
        return str(self._ask(query)["experiment"]["experiment_id"])

    def _found(self, experiment: str, run_id: str) -> str | None:
        asked = {"experiment_ids": [experiment], "filter": f"tags.`{ID_TAG}` = '{run_id}'"}
        runs = self._ask("runs/search", asked).get("runs", [])
        return str(runs[0]["info"]["run_id"]) if runs else None

    def _made(self, experiment: str, run: TrackedRun) -> str:
        asked = {
            "experiment_id": experiment,
            "run_name": run.name,
            "start_time": _milliseconds(clock.time()),
            "tags": [{"key": ID_TAG, "value": run.id}],
        }
        made = str(self._ask("runs/create", asked)["run"]["info"]["run_id"])
        facts = [{"key": name, "value": str(v)[:MAX_TEXT]} for name, v in run.facts.items()]
        self._ask("runs/log-batch", {"run_id": made, "params": facts})
        return made

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
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
