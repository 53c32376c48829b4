"""The HTTP server of a driver on a cluster: progress, scale requests, checkpoints, stacks, and metrics for
Prometheus.

GET /status: one JSON document with the last step, the last checkpoint, alarms, the replicas that train if
they may be fewer, and the rollout devices. PUT /scale {"rollout": N}: request another number of rollout
devices; 202 with the document, 400 if N is wrong, 409 if the job cannot change it. POST /checkpoint: 202; a
checkpoint is written after the current step. POST /stacks {"deadline": NAME, "message": TEXT}: the stacks of
all processes are written; 200 with what the run was doing and where they are. All of these need the job's
token. GET /metrics: figures, without a token. GET /: the page of `rljob watch --web`, which needs the token
too.

It subscribes to the event log. `launch` starts it if the environment names a port. The operator's `progress`
is the client of the first four.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from rljob_api.spec.guards import AlarmReport
from rljob_api.spec.json_text import parse_json
from rljob_api.spec.section import Section
from rljob_api.spec.status import LastCheckpoint, Progress
from rljob_api.topology.fewer_replicas import ReplicasReport
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.errors import ScaleRefused
from rljob_runtime.record.event_types import (
    AlarmEvent,
    CheckpointEvent,
    CopiedEvent,
    DockEvent,
    Event,
    ReplicasEvent,
    StepEvent,
    StragglerEvent,
)
from rljob_runtime.report.display.wording import straggler_text
from rljob_runtime.report.run_figures import CONTENT_TYPE, RunFigures
from rljob_runtime.report.watch.http_server import HttpServer, bears_token, short_body
from rljob_runtime.report.watch.live_document import LiveRun
from rljob_runtime.report.watch.runs import WatchedRun
from rljob_runtime.report.watch.watched_page import Page
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.scale_requests import ScaleRequests

STACKS_FIELDS = ("deadline", "message")
REWARD_DIGITS = 4
"""Decimals of a reward: `kubectl get rljobs` shows it as it is stored."""


class StatusServer:
    """Serves the run's progress until `close`. port: 0 takes a free one, which `port` returns.

    requests: takes requests for other numbers of rollout devices. figures: shown by /metrics. copied: the
    last checkpoint is its copy on remote storage. run: shown by the page, read once a client requests it.
    stacks: takes requests for stacks. save: set when a checkpoint is requested, after persist_save was
    called.
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
        save: threading.Event,
        persist_save: Callable[[], None] = lambda: None,
        copied: bool = False,
        host: str = "0.0.0.0",
    ) -> None:
        self._total_steps = total_steps
        self._saved = CopiedEvent if copied else CheckpointEvent
        self.requests, self.figures, self.stacks = requests, figures, stacks
        self.save, self.persist_save = save, persist_save
        self._token = token
        self._document: dict[str, Any] = {}
        self._slow: dict[tuple[object, ...], str] = {}
        self._reported = threading.Event()
        self._reported.set()  # there is nothing to report yet
        routes = [
            web.get("/metrics", self._answer_metrics),
            web.get("/status", self._answer_status),
            web.put("/scale", self._answer_scale),
            web.post("/checkpoint", self._answer_checkpoint),
            web.post("/stacks", self._answer_stacks),
            *Page(LiveRun(run), token).routes(),
        ]
        self._server = ServerThread(HttpServer(routes, host=host, port=port))
        self.port = self._server.start()[1]

    def on_event(self, event: Event) -> None:
        """Add a step, a checkpoint, an alarm or another fact of the status to the document."""
        if isinstance(event, StepEvent):
            progress = progress_of(event, self._total_steps)
            self._document = {**self._document, "progress": _plain(progress)}
        elif isinstance(event, DockEvent):
            path = data_path(event.data_paths)
            self._document = {**self._document, "dockDataPath": path}
        elif isinstance(event, AlarmEvent):
            raised = event.state == "raised"
            self._take_alarm(event.alarm, event.step, event.message if raised else "")
        elif isinstance(event, StragglerEvent):
            key = (event.state, *event.devices)
            self._slow.pop(key, None)
            if event.status == "slow":
                self._slow[key] = straggler_text(event)
            self._take_alarm("straggler", event.step, "; ".join(self._slow.values()))
        elif isinstance(event, ReplicasEvent):
            replica_fields = {name: getattr(event, name) for name in ReplicasReport.model_fields}
            self._document = {
                **self._document,
                "replicas": _plain(ReplicasReport(**replica_fields)),
            }
        elif isinstance(event, CheckpointEvent | CopiedEvent) and isinstance(event, self._saved):
            time = datetime.fromtimestamp(event.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            path = event.uri if isinstance(event, CopiedEvent) else event.path
            saved = LastCheckpoint(step=event.step, path=path, time=time)
            self._document = {**self._document, "checkpoint": _plain(saved)}
        if isinstance(event, StepEvent | AlarmEvent | StragglerEvent | self._saved):
            self._reported.clear()

    def _take_alarm(self, name: str, step: int, message: str) -> None:
        """Replace an alarm in the document; without a message it is over."""
        others = [alarm for alarm in self._document.get("alarms", []) if alarm["name"] != name]
        if message:
            others.append(_plain(AlarmReport(name=name, step=step, message=message)))
        self._document = {**self._document, "alarms": others}

    def document(self) -> bytes:
        """Return the body of the answer. The latest news counts as reported from now on."""
        self._reported.set()  # first: events during this call may not be in the body
        rollout = self.requests.report().model_dump(mode="json", by_alias=True)
        return json.dumps({**self._document, "rollout": rollout}).encode()

    def close(self, *, wait_seconds: float = 0.0) -> None:
        """Stop listening once a client has requested the latest news, or after `wait_seconds`."""
        self._reported.wait(wait_seconds)
        self._server.stop()

    async def _answer_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.figures.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _answer_status(self, request: web.Request) -> web.Response:
        self._admit(request)
        return web.Response(body=self.document(), content_type="application/json")

    async def _answer_scale(self, request: web.Request) -> web.Response:
        self._admit(request)
        try:
            self.requests.ask(_count(await _json(request)))
        except ScaleRefused as refused:
            error = {"error": str(refused)}
            return web.json_response(error, status=409 if refused.conflict else 400)
        return web.Response(status=202, body=self.document(), content_type="application/json")

    async def _answer_checkpoint(self, request: web.Request) -> web.Response:
        self._admit(request)
        self.persist_save()
        self.save.set()
        return web.Response(status=202)

    async def _answer_stacks(self, request: web.Request) -> web.Response:
        self._admit(request)
        body = await _json(request)
        texts = [body.get(name) for name in STACKS_FIELDS] if isinstance(body, dict) else []
        if not texts or not all(isinstance(text, str) and text for text in texts):
            message = "the body must have the texts deadline and message"
            return web.json_response({"error": message}, status=400)
        outcome = await asyncio.to_thread(self.stacks.ask, *map(str, texts))
        return web.json_response({"told": outcome})

    def _admit(self, request: web.Request) -> None:
        if not bears_token(request, self._token):
            raise web.HTTPUnauthorized


async def _json(request: web.Request) -> Any:
    """Return the parsed body; None if it is too long or not JSON."""
    try:
        return parse_json(await short_body(request))
    except (ValueError, web.HTTPRequestEntityTooLarge):
        return None


def _count(body: Any) -> int:
    count = body.get("rollout") if isinstance(body, dict) and len(body) == 1 else None
    if not isinstance(count, int) or isinstance(count, bool):
        message = 'the body must be {"rollout": N}, N the devices that shall generate'
        raise ScaleRefused(message, conflict=False)
    return count


def progress_of(event: StepEvent, total_steps: int) -> Progress:
    """Return a `step` event as the RLJob's status shows it."""
    metrics = event.metrics
    speed, eta = metrics.get("tokens_per_second"), metrics.get("eta_seconds")
    return Progress(
        step=event.step,
        total_steps=total_steps,
        reward=_rounded(metrics.get("reward/mean")),
        tokens_per_second=None if speed is None else round(speed),
        eta_seconds=None if eta is None else round(eta),
    )


def data_path(states: Mapping[str, Mapping[str, int]]) -> str | None:
    """Return how rows reach workers, from a `dock` event's counts by state; None if none did."""
    used = {kind for kind in ("shared", "tcp") if any(paths[kind] for paths in states.values())}
    return None if not used else used.pop() if len(used) == 1 else "mixed"


def _rounded(reward: float | None) -> float | None:
    return None if reward is None else round(reward, REWARD_DIGITS)


def _plain(section: Section) -> dict[str, Any]:
    return section.model_dump(mode="json", by_alias=True, exclude_none=True)
