"""Read answers of jobs' heads, which run a tenant's code: only up to a limit, and never decompressed."""

from collections.abc import Mapping
from typing import Any

import aiohttp

from rljob_api.spec.json_text import parse_json

MAX_BYTES = 64 << 10
SHOWN_CHARACTERS = 1000
"""Limit for the text of a refusal in logs."""


def headers_of(token: str) -> Mapping[str, str]:
    """Return the headers of a request to a head: authentication, and a ban on compression. The session must
    not decompress either (`auto_decompress=False`): a few kilobytes may be gigabytes."""
    return {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}


async def json_of(answer: aiohttp.ClientResponse) -> Any:
    """Return the document. Raises ValueError if it is compressed, larger than MAX_BYTES, or not JSON."""
    body, is_whole = await _read(answer)
    if not is_whole:
        raise ValueError(f"the answer is larger than {MAX_BYTES >> 10} KiB")
    return parse_json(body)


async def text_of(answer: aiohttp.ClientResponse) -> str:
    """Return the text, as far as it is within MAX_BYTES. Raises ValueError if it is compressed."""
    body, _ = await _read(answer)
    return body.decode(errors="replace")


async def _read(answer: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """Return the first MAX_BYTES of the answer's body, and whether that is all of it."""
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
