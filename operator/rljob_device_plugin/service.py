"""Methods that the kubelet calls: the list of chips and their health, preferred chips, and allocations.

`registration` serves it on the plugin's socket and sets which chips are unhealthy; `chips` decides.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import Message

from rljob_device_plugin import chips, messages
from rljob_device_plugin.errors import UnknownChip

logger = logging.getLogger(__name__)

OPTIONS = messages.DevicePluginOptions(get_preferred_allocation_available=True)


class Service:
    """The chips 0 to count - 1 of one node. All of it belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._unhealthy: frozenset[int] = frozenset()
        self._changed = asyncio.Condition()

    async def set_unhealthy(self, unhealthy: frozenset[int]) -> None:
        """Notify every kubelet that watches, if the set of unhealthy chips changed."""
        async with self._changed:
            if unhealthy != self._unhealthy:
                self._unhealthy = unhealthy
                self._changed.notify_all()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return all methods of the interface except PreStartContainer, which the options do not request."""
        one, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "GetDevicePluginOptions": (one, self._options, messages.Empty),
            "ListAndWatch": (stream, self._list_and_watch, messages.Empty),
            "GetPreferredAllocation": (one, self._prefer, messages.PreferredAllocationRequest),
            "Allocate": (one, self._allocate, messages.AllocateRequest),
        }
        return grpc.method_handlers_generic_handler(
            messages.PLUGIN_SERVICE,
            {
                name: make(
                    method,
                    request_deserializer=request.FromString,
                    response_serializer=_serialize,
                )
                for name, (make, method, request) in methods.items()
            },
        )

    async def _options(self, request: Message, context: grpc.aio.ServicerContext) -> Message:
        return OPTIONS

    async def _list_and_watch(
        self, request: Message, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Message]:
        while True:
            sent = self._unhealthy
            yield self._devices()
            async with self._changed:
                while self._unhealthy == sent:
                    await self._changed.wait()

    def _devices(self) -> Message:
        health = dict.fromkeys(self._unhealthy, messages.UNHEALTHY)
        return messages.ListAndWatchResponse(
            devices=[
                messages.Device(ID=str(chip), health=health.get(chip, messages.HEALTHY))
                for chip in range(self._count)
            ]
        )

    async def _prefer(self, request: Message, context: grpc.aio.ServicerContext) -> Message:
        answer = messages.PreferredAllocationResponse()
        for container_request in request.container_requests:
            chosen = chips.preferred(
                await self._numbers(container_request.available_deviceIDs, context),
                await self._numbers(container_request.must_include_deviceIDs, context),
                size=container_request.allocation_size,
            )
            answer.container_responses.add(deviceIDs=map(str, chosen))
        return answer

    async def _allocate(self, request: Message, context: grpc.aio.ServicerContext) -> Message:
        answer = messages.AllocateResponse()
        for container_request in request.container_requests:
            allocated = await self._numbers(container_request.devices_ids, context)
            container = answer.container_responses.add()
            for key, value in chips.environment(allocated).items():
                container.envs.add(key=key, value=value)
            for chip in allocated:
                container.devices.add(
                    container_path=chips.device_file(chip),
                    host_path=chips.EMULATED_FILE,
                    permissions="rw",
                )
            logger.info("allocated chips=%s", allocated)
        return answer

    async def _numbers(self, ids: list[str], context: grpc.aio.ServicerContext) -> list[int]:
        try:
            return chips.numbers(ids, count=self._count)
        except UnknownChip as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise  # for the reader: abort has raised already


def _serialize(answer: Message) -> bytes:
    return bytes(answer.SerializeToString())
