"""The status of a running driver: a small JSON document that it serves next to Ray's dashboard.

Called by `reconcile`; the other side is the runtime's `status_server`.
"""

import logging
from dataclasses import dataclass
from typing import Literal

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from rljob_api.spec.guards import AlarmReport
from rljob_api.spec.status import LastCheckpoint, Progress
from rljob_api.topology.elastic import RolloutReport
from rljob_api.topology.fewer_replicas import ReplicasReport
from rljob_operator.driver.answers import SHOWN_CHARACTERS, headers_of, json_of, text_of
from rljob_operator.errors import Unreachable

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 3.0
STACKS_SECONDS = 15.0
"""Timeout for stacks: a driver waits 3 s for its processes' stacks and 8 s for their copies."""
STACKS_CHARACTERS = 750
"""Limit for the answer: a condition has 1000 characters for it and the text before."""
RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The driver's last report. alarms: those that are currently raised."""

    progress: Progress | None
    checkpoint: LastCheckpoint | None
    rollout: RolloutReport | None = None
    dock_data_path: Literal["shared", "tcp", "mixed"] | None = None
    alarms: tuple[AlarmReport, ...] = ()
    replicas: ReplicasReport | None = None


class _Document(BaseModel):
    progress: Progress | None = None
    checkpoint: LastCheckpoint | None = None
    rollout: RolloutReport | None = None
    dock_data_path: Literal["shared", "tcp", "mixed"] | None = Field(None, alias="dockDataPath")
    alarms: list[AlarmReport] = []
    replicas: ReplicasReport | None = None


class _Stacks(BaseModel):
    told: str


async def ask_driver(session: aiohttp.ClientSession, url: str, token: str) -> Report | None:
    """Return the driver's report, or None while it has none or does not answer."""
    try:
        async with session.get(
            f"{url}/status",
            headers=headers_of(token),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                return None
            document = _Document.model_validate(await json_of(answer), by_alias=True)
    except (aiohttp.ClientError, TimeoutError, ValueError, ValidationError):
        return None
    return Report(
        progress=document.progress,
        checkpoint=document.checkpoint,
        rollout=document.rollout,
        dock_data_path=document.dock_data_path,
        alarms=tuple(document.alarms),
        replicas=document.replicas,
    )


async def scale_driver(session: aiohttp.ClientSession, url: str, token: str, rollout: int) -> None:
    """Set how many devices the driver lets generate. A refusal is logged: the driver continues with the
    devices that it has. Raises Unreachable."""
    try:
        async with session.put(
            f"{url}/scale",
            json={"rollout": rollout},
            headers=headers_of(token),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            allow_redirects=False,
        ) as answer:
            if answer.status != 202:
                why = (await text_of(answer))[:SHOWN_CHARACTERS]
                logger.warning("rollout=%d refused by the driver: %s", rollout, why)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Unreachable(
            f"the driver at {url} gave no answer ({type(error).__name__})",
            retry_after=RETRY_SECONDS,
        ) from error


async def ask_checkpoint(session: aiohttp.ClientSession, url: str, token: str) -> None:
    """Request a checkpoint after the current step; the driver's report has it once it is saved. A failed
    request is logged: the next pass repeats it."""
    try:
        async with session.post(
            f"{url}/checkpoint",
            headers=headers_of(token),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            allow_redirects=False,
        ) as answer:
            if answer.status != 202:
                logger.warning("checkpoint refused by the driver: %d", answer.status)
    except (aiohttp.ClientError, TimeoutError) as error:
        logger.warning("checkpoint: the driver gave no answer (%s)", type(error).__name__)


async def ask_stacks(
    session: aiohttp.ClientSession, url: str, token: str, *, deadline: str, message: str
) -> str:
    """Let the driver write the stacks of all processes. Return one line with what it was doing and where they
    are, "" if it does not answer."""
    try:
        async with session.post(
            f"{url}/stacks",
            json={"deadline": deadline, "message": message},
            headers=headers_of(token),
            timeout=aiohttp.ClientTimeout(total=STACKS_SECONDS),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                return ""
            text = _Stacks.model_validate(await json_of(answer)).told
    except (aiohttp.ClientError, TimeoutError, ValueError, ValidationError):
        return ""
    return " ".join(text.split())[:STACKS_CHARACTERS]
