"""Serve the chips on a socket next to the kubelet's and register it there, again after each restart.

Called by `main`. A kubelet that starts empties the folder, so a change of either socket shows a restart.
"""

import asyncio
import logging
from pathlib import Path

import grpc
import grpc.aio

from rljob_device_plugin import messages
from rljob_device_plugin.errors import CannotServe, KubeletSilent, Refused
from rljob_device_plugin.faults import Faults, unhealthy
from rljob_device_plugin.reports import Reports
from rljob_device_plugin.service import OPTIONS, Service
from rljob_device_plugin.settings import PluginSettings

logger = logging.getLogger(__name__)

# The kubelet calls the plugin back within Register, and gives that 10 s.
REGISTER_SECONDS = 15.0
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Plugin:
    """One resource of one node, from the first registration until `run` is cancelled. reports: where faults
    are reported, or None."""

    def __init__(self, settings: PluginSettings, reports: Reports | None = None) -> None:
        self._settings, self._reports = settings, reports
        self._service = Service(settings.chips)
        self._faults = Faults(settings.faults, node=settings.node, count=settings.chips)
        self._server: grpc.aio.Server | None = None
        self._registered_at: tuple[int, int] | None = None
        self._problem = ""

    async def run(self) -> None:
        """Keep chips and health registered at the kubelet until cancelled; then remove the plugin's socket.

        Raises KubeletSilent if the first registration takes longer than settings.deadline_seconds, Refused
        and CannotServe at any time.
        """
        deadline = asyncio.get_running_loop().time() + self._settings.deadline_seconds
        try:
            while True:
                marks = self._faults.read()
                await self._service.set_unhealthy(unhealthy(marks))
                await self._keep_registered(deadline)
                if self._reports:
                    await asyncio.to_thread(self._reports.write, marks)
                await asyncio.sleep(self._settings.poll_seconds)
        finally:
            await self._stop()

    async def _keep_registered(self, deadline: float) -> None:
        try:
            await self._register_where_needed()
            self._problem = ""
        except KubeletSilent as error:
            late = asyncio.get_running_loop().time() >= deadline
            if late and self._registered_at is None:
                limit = self._settings.deadline_seconds
                raise KubeletSilent(f"{error} (waited {limit:g} s)") from error
            if str(error) != self._problem:
                logger.warning("waiting for the kubelet: %s", error)
            self._problem = str(error)

    async def _register_where_needed(self) -> None:
        kubelet_at = _identity(self._settings.kubelet_socket)
        served = self._server is not None and self._settings.own_socket.exists()
        if served and kubelet_at == self._registered_at:
            return
        if not served:
            await self._stop()
            await self._serve()
        await self._register()
        self._registered_at = kubelet_at

    async def _serve(self) -> None:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self._service.handler(),))
        try:
            self._server.add_insecure_port(f"unix:{self._settings.own_socket}")
        except RuntimeError as error:
            raise CannotServe(
                f"cannot make the socket {self._settings.own_socket}: the plugin needs to be root "
                "and the kubelet's folder to be writable"
            ) from error
        await self._server.start()

    async def _register(self) -> None:
        settings = self._settings
        request = messages.RegisterRequest(
            version=messages.VERSION,
            endpoint=settings.own_socket.name,
            resource_name=settings.resource,
            options=OPTIONS,
        )
        async with grpc.aio.insecure_channel(f"unix:{settings.kubelet_socket}") as channel:
            register = channel.unary_unary(messages.REGISTER, type(request).SerializeToString)
            try:
                await register(request, timeout=REGISTER_SECONDS)
            except grpc.aio.AioRpcError as error:
                refusal = f"{settings.kubelet_socket}: {error.details()}"
                if error.code() in PASSING:
                    raise KubeletSilent(f"no answer at {refusal}") from error
                raise Refused(f"{settings.resource} is not registered at {refusal}") from error
        logger.info(
            "registered resource=%s chips=%d endpoint=%s",
            settings.resource,
            settings.chips,
            settings.own_socket.name,
        )

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)  # ends ListAndWatch, which would never end otherwise
            self._server = None


def _identity(socket: Path) -> tuple[int, int]:
    """Return an identity that differs after the socket was created again. Raises KubeletSilent if there is
    none."""
    try:
        status = socket.stat()
    except OSError as error:
        raise KubeletSilent(
            f"no kubelet's socket {socket}: {error.strerror}; is the kubelet's folder mounted "
            "(--folder), and does the plugin run as root?"
        ) from error
    return status.st_ino, status.st_ctime_ns
