"""The kubelet's side of the device plugin interface, over real sockets in a folder.

As the real one does, it empties the folder when it starts, calls a plugin back while that registers, and
follows its list of devices.
"""

import asyncio
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from rljob_device_plugin import messages


class FakeKubelet:
    """`registrations`: requests so far.

    refusal: what to answer them with instead of yes. empties: whether others' sockets go at the start.
    """

    def __init__(self, folder: Path, *, refusal: str | None = None, empties: bool = True) -> None:
        self.registrations: list[Any] = []
        self._folder, self._refusal, self._empties = folder, refusal, empties
        self._lists: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._channel: grpc.aio.Channel | None = None
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._empties:
            for left in self._folder.iterdir():
                left.unlink()
        method = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=messages.RegisterRequest.FromString,
            response_serializer=messages.Empty.SerializeToString,
        )
        self._server = grpc.aio.server()
        service = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": method})
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{self._folder / 'kubelet.sock'}")
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._forget_plugin()
        await self._server.stop(None)

    async def devices(self) -> dict[str, str]:
        """The next list that a plugin sends: health by id."""
        return await asyncio.wait_for(self._lists.get(), timeout=20)

    async def call(self, method: str, request: Any, answer: Any) -> Any:
        """The plugin's answer."""
        path = f"/v1beta1.DevicePlugin/{method}"
        assert self._channel is not None, "no plugin has registered"
        ask = self._channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
        return await ask(request, timeout=20)

    async def _register(self, request: Any, context: Any) -> Any:
        self.registrations.append(request)
        if self._refusal is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, self._refusal)
        await self._forget_plugin()
        self._channel = grpc.aio.insecure_channel(f"unix:{self._folder / request.endpoint}")
        await asyncio.wait_for(self._channel.channel_ready(), timeout=10)
        self._watching = asyncio.create_task(self._watch())
        return messages.Empty()

    async def _watch(self) -> None:
        assert self._channel is not None, "no plugin has registered"
        follow = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            messages.Empty.SerializeToString,
            messages.ListAndWatchResponse.FromString,
        )
        async for answer in follow(messages.Empty()):
            self._lists.put_nowait({device.ID: device.health for device in answer.devices})

    async def _forget_plugin(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
