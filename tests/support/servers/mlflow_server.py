"""A real MLflow server of a test, and what it holds.

Its program is taken from RLJOB_MLFLOW, else from PATH: it lives best in an environment of its own.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_SECONDS = 180.0


def program() -> str | None:
    """Where `mlflow` is, if it is anywhere."""
    return shutil.which(os.environ.get("RLJOB_MLFLOW") or "mlflow")


class MLflowServer:
    """What is asked of one that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Of its REST API: POST with a body, else GET."""
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            f"{self.url}/api/2.0/mlflow/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        """The experiment's runs."""
        found = self.ask(f"experiments/get-by-name?experiment_name={experiment}")
        ids = [found["experiment"]["experiment_id"]]
        return list(self.ask("runs/search", experiment_ids=ids).get("runs", []))

    def history(self, run: dict[str, Any], metric: str) -> list[tuple[int, float]]:
        """(step, value) of a metric, by step."""
        asked = f"run_id={run['info']['run_id']}&metric_key={metric}"
        rows = self.ask(f"metrics/get-history?{asked}").get("metrics", [])
        return sorted((int(row["step"]), float(row["value"])) for row in rows)


@contextlib.contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[MLflowServer]:
    """A server on this port until the body's end."""
    found = program()
    assert found is not None, "tests that ask for it are skipped without"
    options = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    command = [found, "server", "--host", "127.0.0.1", "--port", str(port), *options]
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with (folder / "mlflow.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--default-artifact-root", str(folder / "artifacts")],
            stdout=log, stderr=log, cwd=folder, env=clean,
        )  # fmt: skip
        try:
            server = MLflowServer(f"http://127.0.0.1:{port}")
            _wait_until_ready(server, process, folder / "mlflow.log")
            yield server
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(server: MLflowServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{server.url}/health", timeout=5).close()
            return
        time.sleep(0.5)
    raise AssertionError(f"MLflow did not become ready: {log.read_text()[-2000:]}")
