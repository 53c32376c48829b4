"""The device worker: one process per device, which switches between the states that its role has.

Holds the update, rollout and reference engines of its device behind one memory ledger. Samples come
from and go to the dock; weights go between engines here, or over the process group when placement
is separated.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.topology.elastic import DevicePlace
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.children.owned_folders import OwnedFolder
from rljob_runtime.processes.actors.addresses import LiveAddress, own_host
from rljob_runtime.processes.hangs.reporter import start_reporter
from rljob_runtime.prompts.rounds import Round
from rljob_runtime.record.folders import Folder, folder_for_all
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.worker.device_role import DeviceRole

if TYPE_CHECKING:
    from rljob_runtime.dock.stats import Traffic
    from rljob_runtime.record.profiles.traces import Trace
    from rljob_runtime.record.reports import (
        CompareReport,
        GenerateReport,
        SyncReport,
        UpdateReport,
    )
    from rljob_runtime.record.spans import Span


class DeviceWorker:
    """A device. `prepare` makes its states; then the driver calls them in turn.

    torch is imported here and not above, so that the driver can name this class without it.
    """

    def __init__(
        self,
        job_json: str,
        models: dict[str, Folder],
        dock: LiveAddress,
        kept: Path | None,
        role: DeviceRole,
        num_threads: int,
    ) -> None:
        from rljob_runtime.devices.backend_table import open_backend
        from rljob_runtime.record.profiles.recorder import Recorder

        self._role = role
        start_reporter(f"device-{role.rank}", dock.first, self._facts)
        self._spec = ResolvedJob.model_validate_json(job_json).spec
        needed = models if role.update_rank is not None else {"policy": models["policy"]}
        self._models = {name: folder.here() for name, folder in needed.items()}
        self._dock, self._kept = dock, kept
        self._backend = open_backend(self._spec.accelerator, rank=role.rank)
        self._backend.set_up(seed=self._spec.seed, num_threads=num_threads)
        self._recorder = Recorder(self._spec.profile, role.rank, self._backend.profiler)

    def _facts(self) -> dict[str, Any]:
        """What is told of this device when the run hangs; asked in another thread."""
        from rljob_runtime.devices.collective_notes import NOTES

        return {"world_first": self._role.rank - self._role.world_rank, "collectives": NOTES.told()}

    def address(self) -> str:
        """Where this worker's node can be reached, for the process group."""
        return own_host()

    def open_world(self, *present: str) -> str:
        """Open a meeting of the devices that this one computes with, all of whom are `present` (addresses);
        returns its address."""
        from rljob_runtime.devices.sync_group import Meeting

        self._world = Meeting(self.address())
        return self._world.address

    def prepare(self, meeting: str | None) -> DevicePlace:
        """Make the states; the devices of a world meet at `meeting` for it, None for one alone."""
        from rljob_runtime.worker.build import DeviceContext, make_states
        from rljob_runtime.worker.device_ranks import join

        with self._backend.naming_memory_errors():
            context = DeviceContext(
                spec=self._spec,
                role=self._role,
                models=self._models,
                dock=self._dock,
                backend=self._backend,
                kept=self._kept,
            )
            self._states = make_states(
                context,
                meet=lambda: join(
                    self._backend, self._role, meeting, spec=self._spec, models=self._models
                ),
            )
        return DevicePlace(
            device=self._role.rank, host=socket.gethostname(), address=self.address()
        )

    def open_sync(self) -> tuple[str, bool]:
        """Open a meeting of the devices that exchange weights; returns its address, and whether all devices
        that train come."""
        from rljob_runtime.devices.sync_group import Meeting

        self._meeting = Meeting(self.address())
        return self._meeting.address, self._states.port.planned

    def join_sync(self, address: str, rank: int, size: int) -> None:
        """Exchange weights from now on with the devices that join this meeting, and no others."""
        from rljob_runtime.devices.sync_group import SyncGroup

        in_flight = self._states.in_flight
        if in_flight is not None:
            in_flight.listen(None)
        port, name = self._states.port, f"device {self._role.rank}"
        port.leave()
        group = SyncGroup(address, rank=rank, size=size, name=name)
        port.join(group)
        if in_flight is not None:
            in_flight.listen(group)

    def generate(self, batch: BatchName, share: tuple[int, int]) -> "GenerateReport":
        """Generate this device's replica's share: (number of the replica, their number)."""
        assert self._states.generate is not None, f"device {self._role.rank} has no rollout"
        sampling = self._states.sampling(batch)
        with self._watched("generate", batch):
            report = self._states.generate.run(batch, sampling, share)
            if batch.kind == "train":
                self._states.end_generation()
            return report

    def partial_rollout(
        self, batch: BatchName, now: Round, share: tuple[int, int]
    ) -> "GenerateReport":
        """As `generate`, out of the open groups of a round."""
        state = self._states.partial_rollout
        assert state is not None, f"device {self._role.rank} has no partial rollout"
        with self._watched("generate", batch):
            report = state.run(batch, now, self._states.sampling(batch), share)
            if batch.kind == "train":
                self._states.end_generation()
            return report

    def infer(self, state: str, batch: BatchName, groups: range | None = None) -> "Span":
        """Score this device's replica's share in the state reference, teacher, values or reward-model.
        groups: of a round, which the batch has."""
        with self._watched(state, batch):
            return self._states.inference[state].run(batch, groups)

    def compare(self, batch: BatchName) -> "CompareReport":
        """Compare the pairs of this device's replica's share."""
        assert self._states.compare is not None, f"device {self._role.rank} has no pairs"
        with self._backend.naming_memory_errors():
            return self._states.compare.run(batch)

    def update(self, batch: BatchName) -> "UpdateReport":
        """Train the policy, and its critic, on this device's replica's share."""
        assert self._states.update is not None, f"device {self._role.rank} has no update"
        with self._watched("update", batch):
            return self._states.update.run(batch)

    def critic(self, batch: BatchName) -> "Span":
        """Read the critic's share of this device's replica, and make its gradient; `update` moves it."""
        state = self._states.teach_critic
        assert state is not None, f"device {self._role.rank} has no critic"
        with self._watched("critic", batch):
            return state.read(batch)

    def sync(self, version: int) -> "SyncReport":
        """Give the rollout layout the update layout's weights."""
        with self._backend.naming_memory_errors(), self._recorder.recording("sync", version):
            return self._states.sync(version)

    def send(self, version: int) -> "SyncReport":
        """Give devices that go on generating this device's weights; it trains none meanwhile."""
        with self._backend.naming_memory_errors(), self._recorder.recording("send", version):
            return self._states.port.send(version)

    def switch(self, version: int) -> "SyncReport":
        """Generate with the weights that were sent, from the next batch on at the latest."""
        assert self._states.in_flight is not None, f"device {self._role.rank} is sent no weights"
        with self._backend.naming_memory_errors():
            return self._states.in_flight.switch(version)

    def save(self, folder: Path | None) -> Folder:
        """Write this rank's part of a checkpoint into its folder; None: one that travels."""
        if folder is not None:
            self._states.save(folder)
            return Folder(folder)
        with OwnedFolder("checkpoint") as own:
            self._states.save(own.path)
            return folder_for_all(own.path, shared=False)

    def load(self, checkpoint: Folder) -> None:
        """Read model and optimizer from a checkpoint."""
        self._states.load(checkpoint.here())

    def traces(self) -> "list[Trace]":
        """What was recorded since the last call."""
        return self._recorder.take()

    def traffic(self) -> "dict[str, Traffic]":
        """What each state moved through the dock since the last call."""
        return self._states.traffic()

    def peaks(self) -> dict[str, int]:
        """Largest bytes of each memory kind since the last call, and `total`."""
        report = self._backend.ledger.report()
        self._backend.ledger.reset_peaks()
        return {**report.kind_peak_bytes, "total": report.total_peak_bytes}

    @contextmanager
    def _watched(self, state: str, batch: BatchName) -> Iterator[None]:
        """A state's work on a batch, which is recorded where the job asks for its step."""
        step = 0 if batch.kind == "eval" else batch.step
        with self._backend.naming_memory_errors(), self._recorder.recording(state, step):
            yield
