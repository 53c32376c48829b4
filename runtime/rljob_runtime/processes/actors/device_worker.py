"""The device worker: one process per device, which switches between the states that its role has.

Holds the update, rollout and reference engines of its device behind one memory ledger. Samples come
from and go to the dock; weights go between engines here, or over the process group when placement
is separated.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.topology.devices import keeps_engine
from rljob_api.topology.elastic import DevicePlace
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.children.owned_folders import OwnedFolder
from rljob_runtime.devices.tcp import LOOPBACK, restrict_to_loopback
from rljob_runtime.processes.actors.addresses import LiveAddress, own_host
from rljob_runtime.processes.actors.past_reports import PastReports
from rljob_runtime.processes.hangs.reporter import start_reporter
from rljob_runtime.prompts.rounds import Round
from rljob_runtime.record.folders import Folder, folder_for_all
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.worker.device_role import DeviceRole

if TYPE_CHECKING:
    from rljob_runtime.dock.stats import DockTraffic
    from rljob_runtime.record.profiles.traces import Trace
    from rljob_runtime.record.reports import (
        CompareReport,
        GenerateReport,
        SyncReport,
        UpdateReport,
    )
    from rljob_runtime.record.spans import StageSpan
    from rljob_runtime.rollout.rollout_engine import RolloutEngine
    from rljob_runtime.worker.device_states import DeviceStates
    from rljob_runtime.worker.kept_state import KeptState
    from rljob_runtime.worker.transfers import Transfer


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
        base_dir: Path,
        role: DeviceRole,
        num_threads: int,
    ) -> None:
        from rljob_runtime.devices.backend_table import open_backend
        from rljob_runtime.record.profiles.recorder import Recorder
        from rljob_runtime.worker.second_copies import second_copies

        self._role = role
        if own_host() == LOOPBACK:
            restrict_to_loopback()
        start_reporter(f"device-{role.rank}", dock.first, self._facts)
        self._spec = ResolvedJob.model_validate_json(job_json).spec
        needed = models if role.update_rank is not None else {"policy": models["policy"]}
        self._models = {name: folder.local_path() for name, folder in needed.items()}
        self._dock, self._kept, self._base_dir = dock, kept, base_dir
        self._backend = open_backend(self._spec.accelerator, rank=role.rank)
        self._backend.set_up(seed=self._spec.seed, num_threads=num_threads)
        self._recorder = Recorder(self._spec.profile, role.rank, self._backend.profiler)
        self._made: DeviceStates | None = None
        self._outlived: KeptState | None = None
        self._copies = second_copies(self._spec, role, run=dock.first.token)
        self._engine: RolloutEngine | None = None
        self._past = PastReports.of(self._spec)

    def _facts(self) -> dict[str, Any]:
        """What is told of this device when the run hangs; asked in another thread."""
        from rljob_runtime.devices.collective_notes import NOTES

        return {"world": list(self._role.world), "collectives": NOTES.as_json()}

    def address(self) -> str:
        """Where this worker's node can be reached, for the process group."""
        return own_host()

    def open_world(self, *present: str) -> str:
        """Open a meeting of the devices that this one computes with, all of whom are `present` (addresses);
        returns its address."""
        from rljob_runtime.devices.meetings import Rendezvous

        self._world = Rendezvous(self.address())
        return self._world.address

    def prepare(
        self, meeting: str | None, role: DeviceRole, meet_seconds: float | None = None
    ) -> DevicePlace:
        """Make the states of a role of this device; the devices of its world meet at `meeting` for it, None
        for one alone. meet_seconds: how long each waits for the others there."""
        from rljob_runtime.devices.silent_hosts import probe_connections
        from rljob_runtime.worker.build import DeviceContext, make_states
        from rljob_runtime.worker.device_ranks import GRACE_SECONDS, join

        self._role = role
        with self._backend.naming_memory_errors():
            context = DeviceContext(
                spec=self._spec,
                role=role,
                models=self._models,
                dock=self._dock,
                backend=self._backend,
                logprobs_folder=self._kept,
                base_dir=self._base_dir,
                engine=self._engine,
            )
            self._made = make_states(
                context,
                meet=lambda: join(
                    self._backend,
                    self._role,
                    meeting,
                    spec=self._spec,
                    models=self._models,
                    meet_seconds=meet_seconds,
                ),
            )
            self._copies.join(self._spec.flow.stage_timeout_seconds + GRACE_SECONDS)
            probe_connections()  # of all groups that were made
        return DevicePlace(
            device=self._role.rank, host=socket.gethostname(), address=self.address()
        )

    def open_sync(self) -> tuple[str, bool]:
        """Open a meeting of the devices that exchange weights; returns its address, and whether all devices
        that train come."""
        from rljob_runtime.devices.meetings import Rendezvous

        self._meeting = Rendezvous(self.address())
        return self._meeting.address, self._states.port.planned

    def leave_sync(self) -> None:
        """Exchange weights with no other device any more."""
        if self._states.in_flight is not None:
            self._states.in_flight.listen(None)
        self._states.port.leave()

    def join_sync(self, address: str, rank: int, size: int) -> None:
        """Exchange weights from now on with the devices that join this meeting; the last ones were left."""
        from rljob_runtime.devices.sync_group import SyncGroup

        group = SyncGroup(address, rank=rank, size=size, name=f"device {self._role.rank}")
        self._states.port.join(group)
        if self._states.in_flight is not None:
            self._states.in_flight.listen(group)

    def generate(self, batch: BatchName, share: tuple[int, int]) -> "GenerateReport":
        """Generate this device's replica's share: (number of the replica, their number)."""
        assert self._states.generate is not None, f"device {self._role.rank} has no rollout"
        sampling = self._states.sampling(batch)
        with self._watched("generate", batch):
            report = self._states.generate.run(batch, sampling, share)
            if batch.kind == "train":
                self._states.end_generation()
            return self._past.keep("generate", batch, report)

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
            return self._past.keep("generate", batch, report)

    def infer(self, state: str, batch: BatchName, groups: range | None = None) -> "StageSpan":
        """Score this device's replica's share in the state reference, teacher, values or reward-model.
        groups: of a round, which the batch has."""
        with self._watched(state, batch):
            return self._past.keep(state, batch, self._states.inference[state].run(batch, groups))

    def compare(self, batch: BatchName) -> "CompareReport":
        """Compare the pairs of this device's replica's share."""
        assert self._states.compare is not None, f"device {self._role.rank} has no pairs"
        with self._backend.naming_memory_errors():
            return self._past.keep("compare", batch, self._states.compare.run(batch))

    def update(self, batch: BatchName) -> "UpdateReport":
        """Train the policy, and its critic, on this device's replica's share."""
        assert self._states.update is not None, f"device {self._role.rank} has no update"
        self._outlived = None
        self._copies.settle()
        received = self._copies.take_received()
        with self._watched("update", batch):
            report = replace(self._states.update.run(batch), received=received)
            digest = replace(report.digest, weights=self._states.weights_sums())
            report = replace(report, digest=digest)
            self._past.keep("update", batch, report)
            self._copies.keep(batch.step, self._states.live)
        return report

    def critic(self, batch: BatchName) -> "StageSpan":
        """Read the critic's share of this device's replica, and make its gradient; `update` moves it."""
        state = self._states.teach_critic
        assert state is not None, f"device {self._role.rank} has no critic"
        with self._watched("critic", batch):
            return self._past.keep("critic", batch, state.read(batch))

    def past_report(self, stage: str, batch: BatchName) -> object:
        """What this device reported of a batch, once what it was asked before has ended. Raises
        WorkerError."""
        return self._past.get(stage, batch)

    def after(self) -> int | None:
        """The step that what is trained here is after; None where it is between two, or in no world."""
        states = self._made
        return states.update.after if states is not None and states.update is not None else None

    def sync(self, version: int) -> "SyncReport":
        """Give the rollout layout the update layout's weights."""
        self._outlived = None
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

    def load(self, checkpoint: Folder, step: int) -> None:
        """Read model and optimizer from the checkpoint of this step."""
        self._outlived = None
        self.drop_copies()
        self._states.load(checkpoint.local_path(), step=step)

    def let_go(self, keep: bool) -> int | None:
        """Leave the world, one of whose devices has died; `prepare` follows. keep: what is trained here, for
        `take_up`. Returns the step that this is after; None where it was between two, or is not kept. A
        second call changes nothing."""
        from rljob_runtime.worker.device_ranks import leave
        from rljob_runtime.worker.kept_state import KeptState

        with self._backend.naming_memory_errors():
            self._copies.leave()
            if (states := self._made) is not None:
                assert states.update is not None, "devices that only generate are replaced"
                after = states.update.after
                if keep and self._outlived is None and after is not None:
                    self._outlived = KeptState.of(after, states.live())
                if keeps_engine(self._spec) and states.generate is not None:
                    self._engine = states.generate.replica.engine
                states.close()
                self._made = states = None
            leave()
        return None if self._outlived is None else self._outlived.step

    def copies(self) -> dict[int, list[int]]:
        """Steps of the second copies that this device can give, by the update rank that they are of."""
        return self._copies.complete_steps()

    def drop_copies(self, after: int = -1) -> None:
        """Forget those of later steps; of all by default."""
        self._copies.settle()
        self._copies.drop(after=after)

    def close_copies(self) -> None:
        """The run has ended: leave none of them on this machine."""
        self._copies.close()

    def take_up(self, step: int, transfers: "Sequence[Transfer]") -> None:
        """Go on with what was kept after this step, once the transfers are made. All update ranks call it
        together, with the same ones in the same order."""
        from rljob_runtime.worker.kept_state import KeptState

        rank, device = self._role.update_rank, self._backend.device
        own, kept = self._outlived, KeptState(step, {}, {})
        if own is not None and own.step == step:
            kept = own
        for each in transfers:
            if rank == each.giver:
                state = self._copies.get(each.taker, step) if each.copied else own
                assert state is not None, f"update rank {rank} has kept nothing"
                given = state.only([each.part])
                if each.taker == rank:
                    kept = kept.with_parts(given)
                else:
                    given.send(each.taker, device=device)
            elif rank == each.taker:
                kept = kept.with_parts(KeptState.receive(each.giver, device=device))
        self._states.take_up(kept)
        self._outlived = kept
        self.drop_copies(after=step)

    def traces(self) -> "list[Trace]":
        """What was recorded since the last call."""
        return self._recorder.take()

    def traffic(self) -> "dict[str, DockTraffic]":
        """What each state moved through the dock since the last call."""
        return self._states.traffic()

    def peaks(self) -> dict[str, int]:
        """Largest bytes of each memory kind since the last call, and `total`."""
        report = self._backend.ledger.report()
        self._backend.ledger.reset_peaks()
        return {**report.kind_peak_bytes, "total": report.total_peak_bytes}

    @property
    def _states(self) -> "DeviceStates":
        assert self._made is not None, f"device {self._role.rank} is asked before `prepare`"
        return self._made

    @contextmanager
    def _watched(self, state: str, batch: BatchName) -> Iterator[None]:
        """A state's work on a batch, which is recorded where the job asks for its step."""
        step = 0 if batch.kind == "eval" else batch.step
        with self._backend.naming_memory_errors(), self._recorder.recording(state, step):
            yield
