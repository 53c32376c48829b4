"""Send lightkube's requests over aiohttp, which the operator needs anyway for Ray.

httpx2's own transport takes about five times the processor time per request, and was a third of the cost of a
thousand jobs. Used only by `kube_client`.
"""

import ssl

import aiohttp
import httpx2
import yarl

CONNECTIONS = 64


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Keeps connections open. tls: how the server is verified, and the client's certificate. Timeouts are the
    caller's."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the full answer. Raises httpx2.TransportError if none came."""
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
        """Close the connections to the API server."""
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
