"""Answers of jobs' heads, where a tenant's code runs: read up to a bound, and never unpacked."""

from collections.abc import Mapping
from typing import Any

import aiohttp

from rljob_api.spec.json_text import parse_json

MAX_BYTES = 64 << 10
SHOWN_CHARACTERS = 1000
"""Of a refusal, in logs."""


def headers_of(token: str) -> Mapping[str, str]:
    """Return what a request to a head says: who asks, and that nothing may be packed. The session must not
    unpack either (`auto_decompress=False`): a few kilobytes may be gigabytes."""
    return {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}


async def json_of(answer: aiohttp.ClientResponse) -> Any:
    """Return the document. Raises ValueError for one that is packed, larger than MAX_BYTES, or no JSON."""
    body, is_whole = await _read(answer)
    if not is_whole:
        raise ValueError(f"the answer is larger than {MAX_BYTES >> 10} KiB")
    return parse_json(body)


async def text_of(answer: aiohttp.ClientResponse) -> str:
    """Return the text, as far as it is within MAX_BYTES. Raises ValueError for one that is packed."""
    body, _ = await _read(answer)
    return body.decode(errors="replace")


async def _read(answer: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """The first MAX_BYTES of the answer's body, and whether that is all of it."""
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise ValueError(f"the answer is packed ({encoding[:20]}), which was not asked for")
    body = b""
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MAX_BYTES:
            answer.close()  # the rest is not read
            return body[:MAX_BYTES], False
    return body, True
