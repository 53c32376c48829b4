"""Report faulty chips in a ConfigMap, in the format of Ascend's device plugin.

Called by `registration`. There is one ConfigMap per node, written when a mark is added or removed; it stays
at the end.
"""

import json
import logging
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_device_plugin.errors import NotReported
from rljob_device_plugin.faults import Marks, unhealthy

logger = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = 5.0
CODE = "EMULATED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """Address of the API server, and the credentials to use. token: a file, which is rewritten from time to
    time."""

    url: str
    token: Path
    ca: Path

    @classmethod
    def of_pod(cls) -> "ApiServer":
        """Return the address and credentials of a pod with a service account. Raises NotReported
        elsewhere."""
        try:
            host, port = (os.environ[f"KUBERNETES_SERVICE_{name}"] for name in ("HOST", "PORT"))
        except KeyError as error:
            raise NotReported(f"--reports needs a pod: there is no variable {error}") from error
        bracketed = f"[{host}]" if ":" in host else host
        return cls(
            url=f"https://{bracketed}:{port}", token=ACCOUNT / "token", ca=ACCOUNT / "ca.crt"
        )

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Send one request. Raises NotReported."""
        try:
            request = urllib.request.Request(
                self.url + path,
                method=method,
                data=None if body is None else json.dumps(body).encode(),
                headers={
                    "Authorization": f"Bearer {self.token.read_text().strip()}",
                    "Content-Type": "application/apply-patch+yaml",
                },
            )
            tls = ssl.create_default_context(cafile=str(self.ca))
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=tls):
                return
        except urllib.error.HTTPError as error:
            with error:
                refusal = error.read(1000).decode(errors="replace")
            raise NotReported(f"{method} {path}: {error.code} {refusal}") from error
        except OSError as error:
            raise NotReported(f"{method} {path}: {error}") from error


class Reports:
    """The report of one node. wall: unix seconds."""

    def __init__(
        self,
        api: ApiServer,
        *,
        namespace: str,
        node: str,
        resource: str,
        chips: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._wall = api, wall
        self._namespace, self._name = namespace, f"mindx-dl-deviceinfo-{node}"
        self._resource, self._chips = resource, chips
        self._since: dict[tuple[int, str], float] = {}
        self._reported: Marks | None = None
        self._retry_at = 0.0
        self._problem = ""

    def write(self, marks: Marks) -> None:
        """Write the report if the marks changed. A failure is logged once, and retried after
        AGAIN_SECONDS."""
        unix_time = self._wall()
        if marks == self._reported or unix_time < self._retry_at:
            return
        self._since = {mark: self._since.get(mark, unix_time) for mark in marks.items()}
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self._name, "labels": {"mx-consumer-cim": "true"}},
            "data": {"DeviceInfoCfg": json.dumps(self._document(marks, unix_time))},
        }
        query = "fieldManager=rljob-device-plugin&force=true"
        try:
            self._api.call("PATCH", f"{self._path}?{query}", manifest)
        except NotReported as error:
            if str(error) != self._problem:
                logger.error("chips not reported, again in %.0f s: %s", RETRY_SECONDS, error)
            self._problem, self._retry_at = str(error), unix_time + RETRY_SECONDS
            return
        self._reported, self._problem = dict(marks), ""

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/configmaps/{self._name}"

    def _document(self, marks: Marks, unix_time: float) -> dict[str, Any]:
        bad = unhealthy(marks)
        good = [chip for chip in range(self._chips) if chip not in bad]
        lists = {
            "": ",".join(map(self._chip, good)),
            "-Fault": json.dumps(
                [self._entry(chip, level) for chip, level in sorted(marks.items())]
            ),
            "-NetworkUnhealthy": "",
            "-Recovering": "",
            "-Unhealthy": ",".join(map(self._chip, sorted(bad))),
        }
        device_lists = {f"{self._resource}{name}": text for name, text in lists.items()}
        info = {"DeviceList": device_lists, "UpdateTime": int(unix_time)}
        return {"DeviceInfo": info, "SuperPodID": -2, "ServerIndex": -2}

    def _entry(self, chip: int, level: str) -> dict[str, Any]:
        since = {"fault_time": int(1000 * self._since[chip, level]), "fault_level": level}
        return {
            "fault_type": "CardUnhealthy",
            "npu_name": self._chip(chip),
            "large_model_fault_level": level,
            "fault_level": level,
            "fault_handling": level,
            "fault_code": CODE,
            "fault_time_and_level_map": {CODE: since},
        }

    def _chip(self, number: int) -> str:
        return f"{self._resource.rpartition('/')[2]}-{number}"
