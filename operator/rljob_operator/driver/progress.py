"""What a running driver says of itself: a small JSON document that it serves beside Ray's dashboard.

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
"""A driver waits 3 s for its processes' stacks and 8 s for their copies."""
STACKS_CHARACTERS = 750
"""Of the answer: a condition has 1000 for it and what is said before."""
RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The driver's last word. alarms: that are raised now."""

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
    """The driver's report; None while it has none or does not answer."""
    try:
        async with session.get(
            f"{url}/status",
            headers=headers_of(token),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                return None
            found = _Document.model_validate(await json_of(answer), by_alias=True)
    except (aiohttp.ClientError, TimeoutError, ValueError, ValidationError):
        return None
    return Report(
        progress=found.progress,
        checkpoint=found.checkpoint,
        rollout=found.rollout,
        dock_data_path=found.dock_data_path,
        alarms=tuple(found.alarms),
        replicas=found.replicas,
    )


async def scale_driver(session: aiohttp.ClientSession, url: str, token: str, rollout: int) -> None:
    """Tell the driver how many devices shall generate. A refusal is logged: the driver goes on with
    the devices that it has. Raises Unreachable."""
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
    """Tell the driver to save after the step that is under way; its report has the checkpoint once it is
    there. A request that fails is logged: the next pass asks again."""
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
    """Let the driver write everybody's stacks; what it was doing and where they are, in a line. "" where it
    does not answer."""
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
            told = _Stacks.model_validate(await json_of(answer)).told
    except (aiohttp.ClientError, TimeoutError, ValueError, ValidationError):
        return ""
    return " ".join(told.split())[:STACKS_CHARACTERS]
