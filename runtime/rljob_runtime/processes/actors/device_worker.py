"""Run one process per device, which switches between the states of its role.

It holds the update, rollout and reference engines of its device under one memory ledger. Samples are read
from and written to the dock. Weights move between engines in this process, or over the process group if
placement is separated.
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
from rljob_runtime.processes.actors.addresses import LiveAddress, worker_host
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
    """The worker of one device. `prepare` creates its states; then the driver calls them in turn.

    torch is imported in functions, so that the driver can import this class without it.
    """

    def __init__(
        self,
        job_json: str,
        models: dict[str, Folder],
        dock: LiveAddress,
        logprob_dir: Path | None,
        base_dir: Path,
        role: DeviceRole,
        num_threads: int,
    ) -> None:
        from rljob_runtime.devices.backend_table import open_backend
        from rljob_runtime.record.profiles.recorder import Recorder
        from rljob_runtime.worker.second_copies import second_copies

        self._role = role
        if worker_host() == LOOPBACK:
            restrict_to_loopback()
        start_reporter(f"device-{role.rank}", dock.first, self._facts)
        self._spec = ResolvedJob.model_validate_json(job_json).spec
        needed = models if role.update_rank is not None else {"policy": models["policy"]}
        self._models = {name: folder.local_path() for name, folder in needed.items()}
        self._dock, self._logprob_dir, self._base_dir = dock, logprob_dir, base_dir
        self._backend = open_backend(self._spec.accelerator, rank=role.rank)
        self._backend.set_up(seed=self._spec.seed, num_threads=num_threads)
        self._recorder = Recorder(self._spec.profile, role.rank, self._backend.profiler)
        self._device_states: DeviceStates | None = None
        self._surviving_state: KeptState | None = None
        self._copies = second_copies(self._spec, role, run=dock.first.token)
        self._engine: RolloutEngine | None = None
        self._past = PastReports.of(self._spec)

    def _facts(self) -> dict[str, Any]:
        """Return facts about this device for a hang report; called in another thread."""
        from rljob_runtime.devices.collective_notes import NOTES

        return {"world": list(self._role.world), "collectives": NOTES.as_json()}

    def address(self) -> str:
        """Return the address of this worker's node, for the process group."""
        return worker_host()

    def open_world(self, *present: str) -> str:
        """Open a meeting of the devices that this one computes with, and return its address. present:
        their addresses; all must have answered."""
        from rljob_runtime.devices.meetings import Rendezvous

        self._world = Rendezvous(self.address())
        return self._world.address

    def prepare(
        self, meeting: str | None, role: DeviceRole, meet_seconds: float | None = None
    ) -> DevicePlace:
        """Create the states of a role of this device.

        The devices of its world meet at `meeting` for this; None for a device alone. meet_seconds: how
        long each waits there for the others.
        """
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
                logprobs_folder=self._logprob_dir,
                base_dir=self._base_dir,
                engine=self._engine,
            )
            self._device_states = make_states(
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
            probe_connections()  # those of all groups created above
        return DevicePlace(
            device=self._role.rank, host=socket.gethostname(), address=self.address()
        )

    def open_sync(self) -> tuple[str, bool]:
        """Open a meeting of the devices that exchange weights. Return its address, and whether all
        training devices take part."""
        from rljob_runtime.devices.meetings import Rendezvous

        self._meeting = Rendezvous(self.address())
        return self._meeting.address, self._states.port.planned

    def leave_sync(self) -> None:
        """Stop exchanging weights with other devices."""
        if self._states.in_flight is not None:
            self._states.in_flight.listen(None)
        self._states.port.leave()

    def join_sync(self, address: str, rank: int, size: int) -> None:
        """Exchange weights from now on with the devices that join this meeting. The previous group
        must have been left."""
        from rljob_runtime.devices.sync_group import SyncGroup

        group = SyncGroup(address, rank=rank, size=size, name=f"device {self._role.rank}")
        self._states.port.join(group)
        if self._states.in_flight is not None:
            self._states.in_flight.listen(group)

    def generate(self, batch: BatchName, share: tuple[int, int]) -> "GenerateReport":
        """Generate the share of this device's replica: (number of the replica, number of replicas)."""
        assert self._states.generate is not None, f"device {self._role.rank} has no rollout"
        sampling = self._states.sampling(batch)
        with self._watched("generate", batch):
            report = self._states.generate.run(batch, sampling, share)
            if batch.kind == "train":
                self._states.end_generation()
            return self._past.keep("generate", batch, report)

    def partial_rollout(
        self, batch: BatchName, round_: Round, share: tuple[int, int]
    ) -> "GenerateReport":
        """Generate a replica's share from the open groups of a round. share: the same as for
        `generate`."""
        state = self._states.partial_rollout
        assert state is not None, f"device {self._role.rank} has no partial rollout"
        with self._watched("generate", batch):
            report = state.run(batch, round_, self._states.sampling(batch), share)
            if batch.kind == "train":
                self._states.end_generation()
            return self._past.keep("generate", batch, report)

    def infer(self, state: str, batch: BatchName, groups: range | None = None) -> "StageSpan":
        """Score the share of this device's replica in the state reference, teacher, values or
        reward-model. groups: those of a round, if the batch belongs to one."""
        with self._watched(state, batch):
            return self._past.keep(state, batch, self._states.inference[state].run(batch, groups))

    def compare(self, batch: BatchName) -> "CompareReport":
        """Compare the pairs in the share of this device's replica."""
        assert self._states.compare is not None, f"device {self._role.rank} has no pairs"
        with self._backend.naming_memory_errors():
            return self._past.keep("compare", batch, self._states.compare.run(batch))

    def update(self, batch: BatchName) -> "UpdateReport":
        """Train the policy, and its critic, on the share of this device's replica."""
        assert self._states.update is not None, f"device {self._role.rank} has no update"
        self._surviving_state = None
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
        """Read the critic's share of this device's replica and compute its gradient; `update` applies
        it."""
        state = self._states.teach_critic
        assert state is not None, f"device {self._role.rank} has no critic"
        with self._watched("critic", batch):
            return self._past.keep("critic", batch, state.read(batch))

    def past_report(self, stage: str, batch: BatchName) -> object:
        """Return the past report on a batch, after earlier calls have ended. Raises WorkerError."""
        return self._past.get(stage, batch)

    def after(self) -> int | None:
        """Return the step after which the current training state was reached; None between two steps
        or outside of a world."""
        states = self._device_states
        return states.update.after if states is not None and states.update is not None else None

    def sync(self, version: int) -> "SyncReport":
        """Copy the weights of the update layout to the rollout layout."""
        self._surviving_state = None
        with self._backend.naming_memory_errors(), self._recorder.recording("sync", version):
            return self._states.sync(version)

    def send(self, version: int) -> "SyncReport":
        """Send this device's weights to devices that continue to generate. It does not train
        meanwhile."""
        with self._backend.naming_memory_errors(), self._recorder.recording("send", version):
            return self._states.port.send(version)

    def switch(self, version: int) -> "SyncReport":
        """Generate with the received weights, from the next batch on at the latest."""
        assert self._states.in_flight is not None, f"device {self._role.rank} is sent no weights"
        with self._backend.naming_memory_errors():
            return self._states.in_flight.switch(version)

    def save(self, folder: Path | None) -> Folder:
        """Write this rank's shard of a checkpoint into its folder; None: into a folder that is sent to
        the driver."""
        if folder is not None:
            self._states.save(folder)
            return Folder(folder)
        with OwnedFolder("checkpoint") as owned:
            self._states.save(owned.path)
            return folder_for_all(owned.path, shared=False)

    def load(self, checkpoint: Folder, step: int) -> None:
        """Read model and optimizer from the checkpoint of this step."""
        self._surviving_state = None
        self.drop_copies()
        self._states.load(checkpoint.local_path(), step=step)

    def let_go(self, keep: bool) -> int | None:
        """Leave the world after one of its devices has died; `prepare` follows.

        keep: whether to retain the training state, for `take_up`. Returns the step after which it was
        reached; None if it was between two steps or is not retained. A second call changes nothing.
        """
        from rljob_runtime.worker.device_ranks import leave
        from rljob_runtime.worker.kept_state import KeptState

        with self._backend.naming_memory_errors():
            self._copies.leave()
            if (states := self._device_states) is not None:
                assert states.update is not None, "devices that only generate are replaced"
                after = states.update.after
                if keep and self._surviving_state is None and after is not None:
                    self._surviving_state = KeptState.of(after, states.live())
                if keeps_engine(self._spec) and states.generate is not None:
                    self._engine = states.generate.replica.engine
                states.close()
                self._device_states = states = None
            leave()
        return None if self._surviving_state is None else self._surviving_state.step

    def copies(self) -> dict[int, list[int]]:
        """Return the steps of the second copies that this device holds, by the update rank that they
        belong to."""
        return self._copies.complete_steps()

    def drop_copies(self, after: int = -1) -> None:
        """Drop second copies of later steps than `after`; by default all of them."""
        self._copies.settle()
        self._copies.drop(after=after)

    def close_copies(self) -> None:
        """Remove all second copies from this machine at the end of the run."""
        self._copies.close()

    def take_up(self, step: int, transfers: "Sequence[Transfer]") -> None:
        """Continue from the training state after this step, once the transfers are complete. All
        update ranks must call it with the same transfers in the same order."""
        from rljob_runtime.worker.kept_state import KeptState

        rank, device = self._role.update_rank, self._backend.device
        local, restored = self._surviving_state, KeptState(step, {}, {})
        if local is not None and local.step == step:
            restored = local
        for transfer in transfers:
            if rank == transfer.giver:
                state = self._copies.get(transfer.taker, step) if transfer.copied else local
                assert state is not None, f"update rank {rank} has kept nothing"
                shard = state.only([transfer.part])
                if transfer.taker == rank:
                    restored = restored.with_parts(shard)
                else:
                    shard.send(transfer.taker, device=device)
            elif rank == transfer.taker:
                restored = restored.with_parts(KeptState.receive(transfer.giver, device=device))
        self._states.take_up(restored)
        self._surviving_state = restored
        self.drop_copies(after=step)

    def traces(self) -> "list[Trace]":
        """Return the traces recorded since the last call."""
        return self._recorder.take()

    def traffic(self) -> "dict[str, DockTraffic]":
        """Return each state's traffic through the dock since the last call."""
        return self._states.traffic()

    def peaks(self) -> dict[str, int]:
        """Return the peak bytes of each memory kind since the last call, and `total`."""
        report = self._backend.ledger.report()
        self._backend.ledger.reset_peaks()
        return {**report.kind_peak_bytes, "total": report.total_peak_bytes}

    @property
    def _states(self) -> "DeviceStates":
        assert self._device_states is not None, (
            f"device {self._role.rank} is asked before `prepare`"
        )
        return self._device_states

    @contextmanager
    def _watched(self, state: str, batch: BatchName) -> Iterator[None]:
        """Wrap a state's work on a batch, and record it if the job profiles its step."""
        step = 0 if batch.kind == "eval" else batch.step
        with self._backend.naming_memory_errors(), self._recorder.recording(state, step):
            yield
