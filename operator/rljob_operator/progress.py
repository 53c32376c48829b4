"""What a running driver says of itself: a small JSON document that it serves beside Ray's dashboard.

Called by `reconcile`; the other side is the runtime's `status_server`.
"""

from dataclasses import dataclass

import aiohttp
from pydantic import BaseModel, ValidationError

from rljob_api.status import LastCheckpoint, Progress

TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The driver's last word."""

    progress: Progress | None
    checkpoint: LastCheckpoint | None


class _Document(BaseModel):
    progress: Progress | None = None
    checkpoint: LastCheckpoint | None = None


async def ask_driver(session: aiohttp.ClientSession, url: str, token: str) -> Report | None:
    """The driver's report; None while it has none or does not answer."""
    try:
        async with session.get(
            f"{url}/status",
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                return None
            found = _Document.model_validate(await answer.json(), by_alias=True)
    except (aiohttp.ClientError, TimeoutError, ValueError, ValidationError):
        return None
    return Report(progress=found.progress, checkpoint=found.checkpoint)
