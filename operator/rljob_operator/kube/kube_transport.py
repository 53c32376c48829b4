"""Carries lightkube's requests over aiohttp, which the operator has anyway for Ray.

httpx2's own transport takes about five times the processor time a request, and was a third of what a
thousand jobs cost. Used by `kube_client` alone.
"""

import ssl

import aiohttp
import httpx2
import yarl

CONNECTIONS = 64


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Keeps connections open. tls: how the server is verified, and who we are. Timeouts are the caller's."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The whole answer. Raises httpx2.TransportError where none came."""
        body = await request.aread()
        try:
            async with self._opened().request(
                request.method,
                yarl.URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                data=body or None,
                allow_redirects=False,
            ) as answer:
                content = await answer.read()
        except aiohttp.ClientError as error:
            raise httpx2.TransportError(type(error).__name__, request=request) from None
        headers = answer.raw_headers
        return httpx2.Response(answer.status, headers=headers, content=content, request=request)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:  # aiohttp wants a running loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._tls),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,  # httpx2 does that
            )
        return self._session
