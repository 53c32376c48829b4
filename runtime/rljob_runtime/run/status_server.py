"""What a driver on a cluster is asked: how far it is, for other rollout devices, stacks, by Prometheus.

GET /status: one JSON document with the last step, the last checkpoint, alarms and the rollout devices. PUT
/scale {"rollout": N}: another number of these; 202 with the document, 400 where N is wrong, 409 where
the job cannot change it. POST /stacks {"deadline": NAME, "message": TEXT}: everybody's stacks are written,
200 with what the run was doing and where they are. All want the job's token. GET /metrics: figures, for
whoever reaches the port.
`/`: the page of `rljob watch --web`, behind the token too.
Subscribes to the event log; started by `launch` where the environment names a port; the other side of
the first three is the operator's `progress`.
"""

import hmac
import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rljob_api.spec.guards import AlarmReport
from rljob_api.spec.status import LastCheckpoint, Progress
from rljob_runtime.errors import ScaleRefused
from rljob_runtime.record.events import Event
from rljob_runtime.report.run_figures import CONTENT_TYPE, RunFigures
from rljob_runtime.report.watch.live_document import LiveRun
from rljob_runtime.report.watch.page_server import answer_get, answer_post
from rljob_runtime.report.watch.runs import WatchedRun
from rljob_runtime.report.watch.watched_page import Page
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.scale_requests import ScaleRequests

PATH, SCALE_PATH, STACKS_PATH, METRICS_PATH = "/status", "/scale", "/stacks", "/metrics"
STACKS_FIELDS = ("deadline", "message")
MAX_BODY_BYTES = 4096
SILENT_SECONDS = 30.0
"""A connection that says nothing for so long is closed."""
REWARD_DIGITS = 4
"""`kubectl get rljobs` shows what is stored."""


class StatusServer:
    """Serves the run's progress until `close`. port: 0 takes a free one, told by `port`.

    requests: where other numbers of rollout devices are asked for. figures: what /metrics shows. copied:
    what counts as the last checkpoint is its copy on remote storage. run: what the page shows, read once
    somebody looks at it. stacks: where everybody's are asked for.
    """

    def __init__(
        self,
        *,
        port: int,
        token: str,
        total_steps: int,
        requests: ScaleRequests,
        figures: RunFigures,
        run: WatchedRun,
        stacks: StacksRequests,
        copied: bool = False,
        host: str = "",
    ) -> None:
        self._total_steps = total_steps
        self._place = ("copied", "uri") if copied else ("checkpoint", "path")
        self.requests, self.figures, self.stacks = requests, figures, stacks
        self.page = Page(LiveRun(run), token)
        self._document: dict[str, Any] = {}
        self._told = threading.Event()
        self._told.set()  # there is nothing to tell yet
        self._server = ThreadingHTTPServer((host, port), _handler(self, token))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="status", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def on_event(self, event: Event) -> None:
        """Take up a step, a checkpoint or an alarm."""
        saved_kind, place = self._place
        if event["kind"] == "step":
            progress = progress_of(event, self._total_steps)
            self._document = {**self._document, "progress": _plain(progress)}
        elif event["kind"] == "dock":
            path = data_path(event["data_paths"])
            self._document = {**self._document, "dockDataPath": path}
        elif event["kind"] == "alarm":
            self._take_alarm(event)
        elif event["kind"] == saved_kind:
            time = datetime.fromtimestamp(event["time"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            saved = LastCheckpoint(step=event["step"], path=event[place], time=time)
            self._document = {**self._document, "checkpoint": _plain(saved)}
        if event["kind"] in ("step", "alarm", saved_kind):
            self._told.clear()

    def _take_alarm(self, event: Event) -> None:
        others = [
            alarm for alarm in self._document.get("alarms", []) if alarm["name"] != event["alarm"]
        ]
        if event["state"] == "raised":
            told = AlarmReport(name=event["alarm"], step=event["step"], message=event["message"])
            others.append(_plain(told))
        self._document = {**self._document, "alarms": others}

    def document(self) -> bytes:
        """The answer's body; from now on the last news has been told."""
        self._told.set()  # first: what comes while the body is made may not be in it
        rollout = self.requests.report().model_dump(mode="json", by_alias=True)
        return json.dumps({**self._document, "rollout": rollout}).encode()

    def close(self, *, wait_seconds: float = 0.0) -> None:
        """Stop listening, once the last news has been asked for or `wait_seconds` have passed."""
        self._told.wait(wait_seconds)
        self._server.shutdown()
        self._server.server_close()


def progress_of(event: Event, total_steps: int) -> Progress:
    """A `step` event as the RLJob's status has it."""
    metrics = event["metrics"]
    speed, eta = metrics.get("tokens_per_second"), metrics.get("eta_seconds")
    return Progress(
        step=event["step"],
        total_steps=total_steps,
        reward=_rounded(metrics.get("reward/mean")),
        tokens_per_second=None if speed is None else round(speed),
        eta_seconds=None if eta is None else round(eta),
    )


def data_path(states: Mapping[str, Mapping[str, int]]) -> str | None:
    """How rows reach workers, from a `dock` event's counts by state; None where none did."""
    used = {kind for kind in ("shared", "tcp") if any(paths[kind] for paths in states.values())}
    return None if not used else used.pop() if len(used) == 1 else "mixed"


def _rounded(reward: float | None) -> float | None:
    return None if reward is None else round(reward, REWARD_DIGITS)


def _plain(section: Progress | LastCheckpoint | AlarmReport) -> dict[str, Any]:
    return section.model_dump(mode="json", by_alias=True, exclude_none=True)


def _handler(server: StatusServer, token: str) -> type[BaseHTTPRequestHandler]:
    wanted = f"Bearer {token}".encode()

    class Handler(BaseHTTPRequestHandler):
        timeout = SILENT_SECONDS

        def do_GET(self) -> None:
            if self.path == METRICS_PATH:
                self._answer(200, server.figures.text().encode(), CONTENT_TYPE)
            elif not answer_get(self, server.page) and self._admits(PATH):
                self._answer(200, server.document())

        def do_POST(self) -> None:
            if self.path != STACKS_PATH:
                answer_post(self, server.page)
            elif self._admits(STACKS_PATH):
                self._tell_stacks()

        def do_PUT(self) -> None:
            if not self._admits(SCALE_PATH):
                return
            try:
                server.requests.ask(self._asked())
            except ScaleRefused as refused:
                error = {"error": str(refused)}
                self._answer(409 if refused.conflict else 400, json.dumps(error).encode())
            else:
                self._answer(202, server.document())

        def _admits(self, path: str) -> bool:
            shown = (self.headers.get("Authorization") or "").encode()
            if not hmac.compare_digest(shown, wanted):
                self.send_error(401)
            elif self.path != path:
                self.send_error(404)
            else:
                return True
            return False

        def _tell_stacks(self) -> None:
            body = self._body()
            asked = [body.get(name) for name in STACKS_FIELDS] if isinstance(body, dict) else []
            if not asked or not all(isinstance(text, str) and text for text in asked):
                message = "the body must have the texts deadline and message"
                self._answer(400, json.dumps({"error": message}).encode())
                return
            told = server.stacks.ask(*map(str, asked))
            self._answer(200, json.dumps({"told": told}).encode())

        def _body(self) -> Any:
            """None where it is not JSON."""
            length = self.headers.get("Content-Length") or "0"
            size = int(length) if length.isdecimal() and length.isascii() else 0
            try:
                return json.loads(self.rfile.read(min(size, MAX_BODY_BYTES)))
            except ValueError:
                return None

        def _asked(self) -> int:
            body = self._body()
            count = body.get("rollout") if isinstance(body, dict) and len(body) == 1 else None
            if not isinstance(count, int) or isinstance(count, bool):
                message = 'the body must be {"rollout": N}, N the devices that shall generate'
                raise ScaleRefused(message, conflict=False)
            return count

        def _answer(self, code: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not worth a line."""

    return Handler
