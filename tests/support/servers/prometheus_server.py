"""A real Prometheus of a test: its programs, its rules and dashboards, and what it answers.

`prometheus` and `promtool` are taken from the folder that RLJOB_PROMETHEUS names, else from PATH;
docs/metrics.md says where they come from.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from chart_manifests import CHART
from free_ports import free_port

OPERATOR = {"namespace": "rljob-system", "service": "rljob-operator"}
JOB = {"namespace": "team", "rljob": "small"}
START_SECONDS = 60.0
INTERVAL_SECONDS = 1


def program(name: str) -> str | None:
    """Where the program is, if it is anywhere."""
    folder = os.environ.get("RLJOB_PROMETHEUS")
    return shutil.which(name, path=folder) if folder else shutil.which(name)


def alert_groups() -> list[dict[str, Any]]:
    """The chart's rules as a release named `rljob` in `rljob-system` has them."""
    operator = ",".join(f'{label}="{value}"' for label, value in OPERATOR.items())
    places = {"alerts.yaml": ("OPERATOR", operator), "job-alerts.yaml": ("JOBS", 'namespace=~".+"')}
    groups = []
    for file, (word, matchers) in places.items():
        text = (CHART / "files" / file).read_text()
        groups += yaml.safe_load(text.replace("{" + word, "{" + matchers))
    return groups


def dashboard_queries(name: str, values: Mapping[str, str]) -> list[tuple[str, str]]:
    """(panel, query) of the chart's dashboard, with values in place of its variables."""
    dashboard = json.loads((CHART / "files" / name).read_text())
    asked = []
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in {**values, "__rate_interval": "10s"}.items():
                query = query.replace(f"${variable}", value)
            asked.append((panel["title"], query))
    return asked


def dashboard_choices(name: str, values: Mapping[str, str]) -> list[tuple[str, str]]:
    """(selector, label) of each of the dashboard's variables: `label_values(selector, label)`."""
    dashboard = json.loads((CHART / "files" / name).read_text())
    queries = [v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    found = []
    for query in queries:
        text = query["query"] if isinstance(query, dict) else query
        for variable, value in values.items():
            text = text.replace(f"${variable}", value)
        selector, label = text.removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
        found.append((selector, label))
    return found


class Prometheus:
    """One that scrapes these targets. Its clock and its rules are real."""

    def __init__(self, url: str) -> None:
        self._url, self.began = url, time.time()

    def ask(self, path: str, **arguments: str) -> Any:
        """The `data` of an answer of its API."""
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def series(self, query: str) -> list[dict[str, Any]]:
        """What the query has given at any time since the beginning; of each series labels and values."""
        end = time.time()
        times = {"start": str(self.began), "end": str(end), "step": str(INTERVAL_SECONDS)}
        found: list[dict[str, Any]] = self.ask("query_range", query=query, **times)["result"]
        return found


@contextlib.contextmanager
def prometheus(folder: Path, targets: Mapping[int, Mapping[str, str]]) -> Iterator[Prometheus]:
    """Scrape local ports until the body's end. targets: labels by port."""
    found = program("prometheus")
    assert found is not None, "tests that ask for it are skipped without"
    static = [
        {"targets": [f"127.0.0.1:{port}"], "labels": dict(labels)}
        for port, labels in targets.items()
    ]
    interval = f"{INTERVAL_SECONDS}s"
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": alert_groups()}))
    settings = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "rljob", "static_configs": static}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    port = free_port()
    options = {
        "config.file": folder / "prometheus.yaml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    with (folder / "prometheus.log").open("w") as log:
        command = [found, *(f"--{name}={value}" for name, value in options.items())]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, folder / "prometheus.log")
            yield Prometheus(url)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
            return
        time.sleep(0.2)
    raise AssertionError(f"Prometheus did not become ready: {log.read_text()[-2000:]}")
