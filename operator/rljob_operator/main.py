"""The operator's process: arguments, leader election, health, then kopf and the queue until a signal.

`rljob-operator --help` lists what can be set; the chart sets it. Exits with 1 when leadership is lost: a
process that may no longer act must not go on, and its pod is started again as a standby.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Any

import aiohttp
import kopf
from aiohttp import web

from rljob_operator import log
from rljob_operator.cache import Cache, JobKey
from rljob_operator.health import Health, LoopLag, application
from rljob_operator.informers import WatchAges, configure, register, watch_session
from rljob_operator.kube import Kube
from rljob_operator.lease import LeaderLease
from rljob_operator.metrics import Metrics
from rljob_operator.queue import KeyedQueue
from rljob_operator.reconcile import Reconciler, head_url, states
from rljob_operator.resync import resync
from rljob_operator.settings import Settings

logger = logging.getLogger(__name__)

RESYNC_SECONDS = 300.0
STATES_SECONDS = 10.0
LEASE_NAME = "rljob-operator"


def parse(arguments: Sequence[str]) -> tuple[Settings, argparse.Namespace]:
    """Settings of the manifests, and of the process."""
    parser = argparse.ArgumentParser(
        prog="rljob-operator", description="Runs RLJobs on Kubernetes."
    )
    parser.add_argument(
        "--runtime-image", required=True, help="image of all pods of a job on emulated devices"
    )
    parser.add_argument("--ascend-image", required=True, help="the same for Ascend devices")
    parser.add_argument("--ray-version", default="2.60.0", help="Ray's version in both images")
    parser.add_argument(
        "--emulated-device-plugin",
        action="store_true",
        help="nodes offer accelerator.resourceName for emulated devices too",
    )
    parser.add_argument("--namespace", action="append", default=[], help="watch only this; repeat")
    parser.add_argument("--own-namespace", default="rljob-system", help="where the lease lives")
    parser.add_argument("--workers", type=int, default=8, help="passes at the same time")
    parser.add_argument("--port", type=int, default=8080, help="of /healthz, /readyz, /metrics")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING"])
    options = parser.parse_args(arguments)
    settings = Settings(
        runtime_image=options.runtime_image,
        ascend_image=options.ascend_image,
        emulated_device_plugin=options.emulated_device_plugin,
        watch_namespaces=tuple(options.namespace),
        ray_version=options.ray_version,
        operator_namespace=options.own_namespace,
    )
    return settings, options


def main() -> None:
    """Entry point of `rljob-operator`."""
    settings, options = parse(sys.argv[1:])
    log.set_up(sys.stdout, level=getattr(logging, options.log_level))
    sys.exit(asyncio.run(Operator(settings, options).run()))


class Operator:
    """One process of the operator. head_url: where the head of a RayCluster answers."""

    def __init__(
        self,
        settings: Settings,
        options: argparse.Namespace,
        *,
        head_url: Callable[[str, str, int], str] = head_url,
    ) -> None:
        self._settings, self._options = settings, options
        self._head_url = head_url
        self._metrics = Metrics(version=version("rljob"))
        self._cache = Cache()
        self._ages = WatchAges(time.monotonic)
        self._stop = asyncio.Event()
        self._lost = False

    async def run(self) -> int:
        """Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        self._kube = Kube(metrics=self._metrics)
        async with aiohttp.ClientSession() as self._session, contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._kube.close)
            self._reconciler = Reconciler(
                kube=self._kube,
                cache=self._cache,
                queue=_Later(self),
                session=self._session,
                metrics=self._metrics,
                settings=self._settings,
                head_url=self._head_url,
            )
            self._queue: KeyedQueue[JobKey] = KeyedQueue(self._reconciler, metrics=self._metrics)
            self._metrics.read_queue(self._queue.depth, self._queue.longest_running)
            await self._serve_health(stack)
            await self._lead()
        return 1 if self._lost else 0

    def stop(self) -> None:
        """Let `run` return, as a signal does: passes under way end first, the lease is given back."""
        self._stop.set()

    async def _lead(self) -> None:
        """Wait for the lease; work while it is held."""
        elected = asyncio.Event()
        lease = asyncio.create_task(self._lease.run(elected=elected.set, lost=self._on_lost))
        waiting = asyncio.create_task(_first(elected.wait(), self._stop.wait()))
        try:
            await waiting
            if not self._stop.is_set():
                self._metrics.leader.set(1)
                await self._work()
        finally:
            self._stop.set()
            self._metrics.leader.set(0)
            lease.cancel()  # gives the lease back
            await asyncio.gather(lease, return_exceptions=True)

    async def _work(self) -> None:
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        configure(settings)
        register(
            registry,
            cache=self._cache,
            queue=self._queue,
            ages=self._ages,
            clock=time.monotonic,
        )
        kopf.on.login(registry=registry)(self._login)
        namespaces = self._options.namespace
        self._ages.started()
        parts: list[Coroutine[Any, Any, Any]] = [
            kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=self._stop,
            ),
            self._resync(namespaces),
            self._queue.run(self._options.workers),
            self._tell_states(),
        ]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(
                [*tasks, asyncio.create_task(self._stop.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._stop.set()
            self._queue.stop()
            await asyncio.wait(tasks[2:3], timeout=25)  # passes under way
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # a part that broke ends the process, loudly

    async def _login(self, **arguments: Any) -> Any:
        found = kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(
            **arguments
        )
        if not isinstance(found, kopf.ConnectionInfo):
            raise kopf.LoginError("no service account and no kubeconfig")
        return watch_session(found, self._ages)

    async def _resync(self, namespaces: Sequence[str]) -> None:
        while True:
            await resync(self._kube, cache=self._cache, queue=self._queue, namespaces=namespaces)
            await asyncio.sleep(RESYNC_SECONDS)

    async def _tell_states(self) -> None:
        while True:
            self._metrics.set_states(states(self._cache))
            await asyncio.sleep(STATES_SECONDS)

    async def _serve_health(self, stack: contextlib.AsyncExitStack) -> None:
        self._lease = LeaderLease(
            self._kube,
            namespace=self._options.own_namespace,
            name=LEASE_NAME,
            me=f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}",
        )
        lag = LoopLag()
        health = Health(
            lag=lag,
            watches=self._ages,
            queue=self._queue,
            is_leader=self._lease.is_leader,
            caches_filled=self._cache.filled,
        )
        measuring = asyncio.create_task(lag.run())
        stack.callback(measuring.cancel)
        runner = web.AppRunner(application(health, self._metrics.registry))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, port=self._options.port).start()

    def _on_lost(self) -> None:
        if not self._stop.is_set():
            logger.error("leadership lost: ending")
            self._lost = True
            self._stop.set()

    def look_later(self, key: JobKey, seconds: float) -> None:
        """Ask the queue for another pass."""
        self._queue.add_after(key, seconds)


class _Later:
    """The queue for the reconciler, which the queue itself is made with."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def add_after(self, key: JobKey, seconds: float) -> None:
        self._operator.look_later(key, seconds)


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
