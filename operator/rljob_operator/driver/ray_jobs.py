"""Ray's Jobs REST API of one cluster: submit once, ask, stop, read the end of the log.

Called by `observe` and `apply`. Ray refuses to use a submission id twice, which is what makes submitting
safe to repeat: whenever it is unknown whether a submission arrived, the id is asked for first.
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
"""Of which those that the driver itself wrote are looked for."""
OF_RAYLETS = re.compile(
    r"\(raylet[,)]|\s+\[state-dump\]|\s+\[\d{4}-\d\d-\d\d [\d:,]+ \w [\d ]+\] \(raylet\) "
)
"""When a node goes, Ray prints pages of its raylet's log into every driver's output."""
MESSAGE_CHARACTERS = 500


class RayJobStatus(StrEnum):
    """Ray's own words for the state of a submission."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_final(self) -> bool:
        return self in (RayJobStatus.STOPPED, RayJobStatus.SUCCEEDED, RayJobStatus.FAILED)


class Submitted(StrEnum):
    """How a submission went."""

    NOW = "now"
    EARLIER = "earlier"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJob:
    """What Ray says of a submission. exit_code: the driver's, once it ended. node_id: where it runs."""

    status: RayJobStatus
    message: str = ""
    exit_code: int | None = None
    node_id: str | None = None


class RayMetrics(Protocol):
    """What each request is reported to."""

    def ray_call(self, verb: str, code: str, seconds: float) -> None: ...


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
    ) -> Submitted:
        """Start the job unless it was started before. env: shown in Ray's dashboard, so no secrets.

        Raises Unreachable where it stays unknown whether it started: call again, with the same id.
        """
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "runtime_env": {"env_vars": dict(env or {})},
            "metadata": dict(metadata or {}),
        }
        try:
            async with self._request("submit", "POST", "/api/jobs/", json=body):
                return Submitted.NOW
        except (Temporary, Invalid):
            # Ray says "already exists" with 400 or 500; a lost answer may have been a success.
            if await self.job(submission_id) is None:
                raise
            return Submitted.EARLIER

    async def job(self, submission_id: str) -> RayJob | None:
        """What Ray knows of the submission; None where it knows nothing of it."""
        try:
            async with self._request("status", "GET", f"/api/jobs/{submission_id}") as answer:
                found: dict[str, Any] = await json_of(answer)
        except NotFound:
            return None
        return RayJob(
            status=RayJobStatus(found["status"]),
            message=_shortened(found.get("message") or ""),
            exit_code=found.get("driver_exit_code"),
            node_id=found.get("driver_node_id"),
        )

    async def status(self, submission_id: str) -> RayJobStatus | None:
        """State of the submission; None where Ray does not know it."""
        job = await self.job(submission_id)
        return None if job is None else job.status

    async def stop(self, submission_id: str) -> bool:
        """Ask the job to end, without waiting for it; False where Ray does not know it."""
        return await self._act("stop", "POST", f"/api/jobs/{submission_id}/stop")

    async def delete(self, submission_id: str) -> bool:
        """Make Ray forget a job that ended; False where it does not know it."""
        return await self._act("delete", "DELETE", f"/api/jobs/{submission_id}")

    async def log_tail(self, submission_id: str, *, lines: int) -> str:
        """The driver's last lines, within 64 KiB of output; "" where there is none yet. What Ray adds of
        lost nodes' logs is left out."""
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
        found = tail.decode(errors="replace").splitlines()
        return "\n".join([line for line in found if not OF_RAYLETS.match(line)][-lines:])

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
        """The answer, to be read inside: a connection that breaks there is Unreachable as well."""
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
