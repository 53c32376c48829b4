"""What outlives a run's driver on Ray: reservations, actors, ports, folders, what the driver keeps of itself.

In the process above it (`run.supervisor`), with whose Ray job all of it ends. A driver asks for it through a
`Link`; a handle of Ray is the same in both processes.
"""

import contextlib
import os
import pickle
import time
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.children.owned_folders import OwnedFolder
from rljob_runtime.dock.ports import ReservedPorts
from rljob_runtime.errors import RljobError, WorkerFailed
from rljob_runtime.processes.link import KEEP, dumps
from rljob_runtime.record.folders import Folder, folder_for_all

if TYPE_CHECKING:
    from rljob_runtime.processes.on_ray import Reservation
    from rljob_runtime.processes.reaper import Reaper

NAME_SECONDS = 30.0
"""Until Ray has let go of the name of an actor that was ended."""
LOOK_SECONDS = 5.0


class Holder:
    """The end of the process above. request: what a driver is asked for. job: of the run. address: of Ray's
    cluster, None: one of the run's own, started when the first driver asks for it. told: steps that drivers
    have told. stops: how often the run was asked to stop. listening: whether the driver that lives hears
    signals. facts: of the one that died last."""

    def __init__(self, request: Any, job: ResolvedJob, address: str | None) -> None:
        self._request, self._job, self._address = request, job, address
        self._open = contextlib.ExitStack()
        self._session: tuple[str, str] | None = None
        self._reaper: Reaper | None = None
        self._actors: list[Any] = []
        self._groups: list[Any] = []
        self._kept: dict[str, bytes] = {}
        self.told = 0
        self.listening = False
        self.stops = 0
        self.facts: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def serve(self, connection: Connection, ended: int) -> None:
        """Answer a driver until it has ended, and what it said last is read. ended: file that tells of its
        end."""
        says = True
        while True:
            ready = wait([connection, ended] if says else [ended], LOOK_SECONDS)
            if says and connection in ready:
                says = self._heard(connection)
            elif ready:
                return
            else:
                self._watch()

    def _heard(self, connection: Connection) -> bool:
        """Do what the driver says next; False where it says no more, or was cut in the midst of a word."""
        try:
            what, arguments = pickle.loads(connection.recv_bytes())  # noqa: S301 (a pipe of its own)
        except (EOFError, OSError):
            return False
        if what == KEEP:
            self._keep(*arguments)
        else:
            with contextlib.suppress(OSError):  # it died meanwhile
                connection.send_bytes(dumps(_answer(getattr(self, what), *arguments)))
        return True

    def request(self) -> Any:
        """What a driver is asked for."""
        return self._request

    def kept(self) -> dict[str, bytes]:
        """What drivers have kept."""
        return self._kept

    def who_died(self) -> dict[str, Any]:
        """Of the driver before, for the one that takes over; empty for the first."""
        return self.facts

    def listens(self) -> int:
        """The driver hears signals from now on; how often the run was asked to stop before."""
        self.listening = True
        return self.stops

    def open(self) -> tuple[str, str, dict[str, str]]:
        """Ray's address, the run's namespace there, and the environment that says how Ray authenticates;
        connected, or started, once."""
        from rljob_runtime.processes.session import ray_session

        if self._session is None:
            self._reaper, namespace = self._open.enter_context(
                ray_session(self._job, self._address)
            )
            import ray

            self._session = ray.get_runtime_context().gcs_address, namespace
        how = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")}
        return *self._session, how

    def start(self, *described: Any) -> Any:
        """An actor, which ends with this process. As `on_ray.start_actor`."""
        from rljob_runtime.processes.on_ray import start_actor

        deadline = time.monotonic() + NAME_SECONDS
        while True:
            try:
                self._actors.append(start_actor(*described))
                return self._actors[-1]
            except ValueError:  # the name of one that is being ended
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def reserve(self, bundles: list[dict[str, float]]) -> "Reservation":
        """Devices, likewise. As `on_ray.reserve`."""
        from rljob_runtime.processes.on_ray import reserve

        self._groups.append(reserve(bundles))
        return self._groups[-1]

    def end_others(self, actors: Collection[Any], groups: Collection[Any]) -> None:
        """End what the driver that takes over does not know, since the one before made it in its last
        moments."""
        from rljob_runtime.processes.on_ray import end_actor, give_back

        stay = {actor._actor_id for actor in actors}
        held = {group.id for group in groups}
        for actor in [each for each in self._actors if each._actor_id not in stay]:
            end_actor(actor)
        for group in [each for each in self._groups if each.id not in held]:
            give_back(group)
        self._actors = [each for each in self._actors if each._actor_id in stay]
        self._groups = [each for each in self._groups if each.id in held]

    def hold_ports(self, count: int) -> list[int]:
        """Free ones, see `HeldPorts`."""
        return [*self._open.enter_context(ReservedPorts(count))]

    def own_folder(self, kind: str) -> Path:
        """A folder that goes with this process."""
        return self._open.enter_context(OwnedFolder(kind)).path

    def folder_for_all(self, path: Path, *, shared: bool) -> Folder:
        """As that of `folders`: Ray keeps what travels as long as this process lives."""
        return folder_for_all(path, shared=shared)

    def watch(self) -> None:
        """New processes belong to the run."""
        self._watch()

    def _watch(self) -> None:
        if self._reaper is not None:
            self._reaper.watch_descendants()

    def _keep(self, values: dict[str, bytes], told: int | None) -> None:
        self._kept |= values
        self.told = self.told if told is None else told


def _answer(
    work: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, Exception | None]:
    """rljob's own errors as they are, others as what a worker failed of."""
    try:
        return work(*arguments, **named), None
    except RljobError as error:
        return None, error
    except Exception as error:
        return None, WorkerFailed(RuntimeError(f"{type(error).__name__}: {error}"))
