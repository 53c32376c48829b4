"""Ray's Jobs REST API of one cluster: submit once, query, stop, and read the end of the log.

Called by `observe` and `apply`. Ray refuses to use a submission id twice, which makes submitting safe to
repeat. If it is unknown whether a submission arrived, the id is queried first.
"""

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import aiohttp

from rljob_operator.driver.answers import headers_of, json_of, text_of
from rljob_operator.errors import (
    Invalid,
    NotFound,
    Temporary,
    Unauthorized,
    Unavailable,
    Unreachable,
)

CONNECT_SECONDS = 2.0
TOTAL_SECONDS = 5.0
RETRY_SECONDS = 2.0
LOG_TAIL_BYTES = 64 * 1024
LINES_READ = 400
"""Lines that are read to find those that the driver itself wrote."""
OF_RAYLETS = re.compile(
    r"\(raylet[,)]|\s+\[state-dump\]|\s+\[\d{4}-\d\d-\d\d [\d:,]+ \w [\d ]+\] \(raylet\) "
)
"""When a node is lost, Ray prints pages of its raylet's log into every driver's output."""
MESSAGE_CHARACTERS = 500


class RayJobStatus(StrEnum):
    """Ray's own names for the state of a submission."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_final(self) -> bool:
        """Return whether the submission has ended."""
        return self in (RayJobStatus.STOPPED, RayJobStatus.SUCCEEDED, RayJobStatus.FAILED)


class SubmissionResult(StrEnum):
    """The result of a submission."""

    NOW = "now"
    EARLIER = "earlier"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJob:
    """A submission as Ray describes it. exit_code: the driver's, once it ended. node_id: where it runs."""

    status: RayJobStatus
    message: str = ""
    exit_code: int | None = None
    node_id: str | None = None


class RayMetrics(Protocol):
    """Receives a report of each request."""

    def ray_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one finished request to Ray's Jobs API. code: the HTTP status, or no_answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJobs:
    """The Jobs API at `url` (http://host:8265). The session is the caller's, shared by all clusters."""

    url: str
    token: str = field(repr=False)
    session: aiohttp.ClientSession
    metrics: RayMetrics
    clock: Callable[[], float] = time.perf_counter

    async def submit(
        self,
        submission_id: str,
        *,
        entrypoint: str,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> SubmissionResult:
        """Start the job unless it was started before. env: shown in Ray's dashboard, so no secrets.

        Raises Unreachable if it is unknown whether it started: call again, with the same id.
        """
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "runtime_env": {"env_vars": dict(env or {})},
            "metadata": dict(metadata or {}),
        }
        try:
            async with self._request("submit", "POST", "/api/jobs/", json=body):
                return SubmissionResult.NOW
        except (Temporary, Invalid):
            # Ray says "already exists" with 400 or 500; a lost answer may have been a success.
            if await self.job(submission_id) is None:
                raise
            return SubmissionResult.EARLIER

    async def job(self, submission_id: str) -> RayJob | None:
        """Return the submission, or None if Ray does not know it."""
        try:
            async with self._request("status", "GET", f"/api/jobs/{submission_id}") as answer:
                document: dict[str, Any] = await json_of(answer)
        except NotFound:
            return None
        return RayJob(
            status=RayJobStatus(document["status"]),
            message=_shortened(document.get("message") or ""),
            exit_code=document.get("driver_exit_code"),
            node_id=document.get("driver_node_id"),
        )

    async def status(self, submission_id: str) -> RayJobStatus | None:
        """Return the state of the submission, or None if Ray does not know it."""
        job = await self.job(submission_id)
        return None if job is None else job.status

    async def stop(self, submission_id: str) -> bool:
        """Request the end of the job, without waiting for it; return False if Ray does not know it."""
        return await self._act("stop", "POST", f"/api/jobs/{submission_id}/stop")

    async def delete(self, submission_id: str) -> bool:
        """Delete an ended job from Ray's records; return False if Ray does not know it."""
        return await self._act("delete", "DELETE", f"/api/jobs/{submission_id}")

    async def log_tail(self, submission_id: str, *, lines: int) -> str:
        """Return the driver's last lines, within 64 KiB of output; "" if there is none yet. Logs of lost
        nodes, which Ray adds, are left out."""
        job = await self.job(submission_id)
        if job is None or job.node_id is None:
            return ""
        # /api/jobs/…/logs would send the whole file, which may be gigabytes.
        query = {
            "node_id": job.node_id,
            "submission_id": submission_id,
            "lines": str(max(lines, LINES_READ)),
            "filter_ansi_code": "true",
        }
        tail = b""
        async with self._request("logs", "GET", "/api/v0/logs/file", params=query) as answer:
            async for chunk in answer.content.iter_any():
                tail = (tail + chunk)[-LOG_TAIL_BYTES:]
        output_lines = tail.decode(errors="replace").splitlines()
        return "\n".join([line for line in output_lines if not OF_RAYLETS.match(line)][-lines:])

    async def _act(self, verb: str, method: str, path: str) -> bool:
        try:
            async with self._request(verb, method, path):
                return True
        except NotFound:
            return False

    @asynccontextmanager
    async def _request(
        self, verb: str, method: str, path: str, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer, to be read inside: a connection that breaks there is Unreachable as well."""
        began = self.clock()
        code = "no_answer"
        try:
            async with self.session.request(
                method,
                self.url + path,
                headers=headers_of(self.token),
                timeout=aiohttp.ClientTimeout(total=TOTAL_SECONDS, sock_connect=CONNECT_SECONDS),
                allow_redirects=False,  # the token goes to this address and no other
                **options,
            ) as answer:
                code = str(answer.status)
                if answer.status != 200:
                    raise _refusal(answer.status, verb, await text_of(answer))
                yield answer
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            why = str(error) if type(error) is ValueError else type(error).__name__
            raise Unreachable(
                f"Ray at {self.url} gave no answer to {verb} ({why})", retry_after=RETRY_SECONDS
            ) from error
        finally:
            self.metrics.ray_call(verb, code, self.clock() - began)


def _refusal(code: int, verb: str, text: str) -> Exception:
    # A traceback's last line is its message.
    message = f"Ray answered {verb} with {code}: {_shortened(text.strip().rpartition(chr(10))[2])}"
    if code in (401, 403):
        return Unauthorized(message)
    if code == 404:
        return NotFound(message)
    if code == 429 or code >= 500:
        return Unavailable(message, retry_after=RETRY_SECONDS)
    return Invalid(message)


def _shortened(text: str) -> str:
    return text[-MESSAGE_CHARACTERS:]
