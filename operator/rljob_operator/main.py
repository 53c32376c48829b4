"""The operator's process: leader election, health, then kopf and the queue until a signal.

`arguments` defines the options; the chart sets them. Exits with 1 if leadership is lost: a process that may
no longer act must end, and its pod is restarted as a standby.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

import aiohttp
import kopf
from aiohttp import web

from rljob_api.spec.json_text import allow_api_server_nesting
from rljob_operator import log
from rljob_operator.arguments import parse
from rljob_operator.errors import OperatorError
from rljob_operator.health import Health, LoopLag, application
from rljob_operator.kube.kube_client import Kube
from rljob_operator.metrics import Metrics
from rljob_operator.reconcile.reconcile import Reconciler, head_url, states
from rljob_operator.settings import ProcessOptions, Settings
from rljob_operator.watch.cache import KINDS, Cache, JobKey
from rljob_operator.watch.fault_watch import ChipFaults, keep_reading
from rljob_operator.watch.informers import WatchAges, configure, register, watch_session
from rljob_operator.watch.lease import LeaderLease
from rljob_operator.watch.pace import Pace
from rljob_operator.watch.queue import KeyedQueue
from rljob_operator.watch.resync import keep_in_step

logger = logging.getLogger(__name__)

STATES_SECONDS = 10.0
LEASE_NAME = "rljob-operator"


def main() -> None:
    """Entry point of `rljob-operator`."""
    settings, process = parse(sys.argv[1:])
    log.set_up(sys.stdout, level=getattr(logging, process.log_level))
    try:
        code = asyncio.run(Operator(settings, process).run())
    except OperatorError as error:  # what an administrator can mend needs no traceback
        logger.error("ending: %s", error)
        code = 1
    sys.exit(code)


class Operator:
    """One process of the operator. head_url: the URL of the head of a RayCluster."""

    def __init__(
        self,
        settings: Settings,
        process: ProcessOptions,
        *,
        head_url: Callable[[str, str, int], str] = head_url,
    ) -> None:
        self._settings, self._process = settings, process
        self._head_url = head_url
        self._metrics = Metrics(version=version("rljob"))
        self._cache = Cache((*KINDS, "Workload") if settings.kueue else KINDS)
        self._faults = ChipFaults() if settings.faults_namespace else None
        self._ages = WatchAges(time.monotonic)
        self._stop = asyncio.Event()
        self._lost = False
        self._identity = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"

    async def run(self) -> int:
        """Run the operator and return the exit code."""
        allow_api_server_nesting()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        pace = Pace(self._process.workers, self._metrics)
        self._kube = Kube(metrics=pace)
        async with (
            aiohttp.ClientSession(auto_decompress=False) as self._session,
            contextlib.AsyncExitStack() as stack,
        ):
            stack.push_async_callback(self._kube.close)
            self._reconciler = Reconciler(
                kube=self._kube,
                cache=self._cache,
                queue=_DeferredQueue(self),
                session=self._session,
                metrics=self._metrics,
                settings=self._settings,
                faults=self._faults,
                head_url=self._head_url,
            )
            self._queue: KeyedQueue[JobKey] = KeyedQueue(
                self._reconciler, metrics=self._metrics, pass_limit=pace.pass_limit
            )
            self._metrics.read_queue(self._queue.depth, self._queue.longest_running)
            await self._serve_health(stack)
            await self._lead()
        return 1 if self._lost else 0

    def stop(self) -> None:
        """Let `run` return, as a signal does: current passes end first, and the lease is released."""
        self._stop.set()

    async def _lead(self) -> None:
        """Wait for the lease, and work while it is held."""
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
        namespaces = self._settings.watch_namespaces
        identity: Any = self._identity  # kopf's own type for it is private
        self._ages.started(self._cache.kinds)
        filled = asyncio.Event()
        services: list[Coroutine[Any, Any, Any]] = [
            kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                # kopf would look up the user's name, which a container's user does not have.
                identity=identity,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=self._stop,
            ),
            keep_in_step(
                self._kube,
                cache=self._cache,
                queue=self._queue,
                namespaces=namespaces,
                on_step=filled.set,
            ),
            self._pass(filled),
            self._report_states(),
        ]
        if self._faults is not None and self._settings.faults_namespace is not None:
            services.append(
                keep_reading(
                    self._kube,
                    namespace=self._settings.faults_namespace,
                    faults=self._faults,
                    cache=self._cache,
                    queue=self._queue,
                    metrics=self._metrics,
                )
            )
        tasks = [asyncio.create_task(service) for service in services]
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
            task.result()  # raise the error of a broken service, which ends the process

    async def _pass(self, filled: asyncio.Event) -> None:
        """Work on the queue once all kinds were listed. Earlier, a RayCluster that was not observed yet would
        count as lost."""
        await _first(filled.wait(), self._stop.wait())
        await self._queue.run(self._process.workers)

    async def _login(self, **arguments: Any) -> Any:
        connection = kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(
            **arguments
        )
        if not isinstance(connection, kopf.ConnectionInfo):
            raise kopf.LoginError("no service account and no kubeconfig")
        return watch_session(connection, self._ages)

    async def _report_states(self) -> None:
        while True:
            self._metrics.set_states(states(self._cache))
            await asyncio.sleep(STATES_SECONDS)

    async def _serve_health(self, stack: contextlib.AsyncExitStack) -> None:
        self._lease = LeaderLease(
            self._kube,
            namespace=self._settings.operator_namespace,
            name=LEASE_NAME,
            me=self._identity,
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
        await web.TCPSite(runner, port=self._process.port).start()

    def _on_lost(self) -> None:
        if not self._stop.is_set():
            logger.error("leadership lost: ending")
            self._lost = True
            self._stop.set()

    def look_later(self, key: JobKey, seconds: float) -> None:
        """Request another pass from the queue."""
        self._queue.add_after(key, seconds)


class _DeferredQueue:
    """The queue as the reconciler uses it; the queue itself is created with the reconciler."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def add_after(self, key: JobKey, seconds: float) -> None:
        """Request a pass over the job after this many seconds."""
        self._operator.look_later(key, seconds)


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
