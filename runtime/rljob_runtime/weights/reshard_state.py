"""Move weights from the update to the rollout layout by the plan, and back from the host. Created by
`resharding`.

Called by the device worker, on all devices together, each of which trains, generates or does both.
`allgather-swap`: a device that does both holds one layout at a time; the update's weights are on the host
while it generates, and return afterwards. `allgather`: both layouts stay on the device. Engines whose weights
are not tensors of this process use `weight_sync` instead.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.figures import largest_bucket
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_runtime.devices.members import Members
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger, Moment
from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.devices.wire import start_broadcast
from rljob_runtime.errors import WeightsError, WorkerError
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.parallel.fully_sharded import local_rows
from rljob_runtime.record.reports import ReshardFigures, SyncReport
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.rollout.rollout_engine import SleepingEngine, SlicedEngine, TakingEngine
from rljob_runtime.rollout.sync_probe import gap_of, policy_logprobs, probe_sequences
from rljob_runtime.weights.reshard.executor import NewTensor, Resharder
from rljob_runtime.weights.reshard.merging import AdapterMerge
from rljob_runtime.weights.reshard.strategies import Strategy
from rljob_runtime.weights.reshard_checks import REMEDY, ReceivedSlices, ReshardChecks
from rljob_runtime.weights.rollout_weights import RolloutBuffers

MOMENTS = 64
"""The number of moments of a device's memory that a reshard reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardSetup:
    """A plan among its members, and this device's end of it. merge: of adapters, where those are trained;
    they stay on the device."""

    plan: ReshardPlan
    members: Members
    resharder: Resharder
    strategy: Strategy
    checks: ReshardChecks
    merge: AdapterMerge | None

    @property
    def apart(self) -> bool:
        """Whether some of the members hold no policy."""
        return self.plan.update.devices != self.plan.rollout.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """The result of a reshard. expected_T: log-probs under the policy. sent_sums: sums of the boxes that this
    device sent; slices: its slices, None where an engine took them. seconds: of the moves, without checks."""

    expected_T: Tensor
    sent_sums: list[Tensor]
    slices: Mapping[str, Tensor] | None
    peak_bytes: int
    seconds: float
    check_seconds: float


@dataclass(slots=True, kw_only=True)
class Reshard:
    """One device's end of a reshard: a `Port`.

    make: creates a plan among members, which all call it together. update: the live tensors that are trained,
    by name; policy: the model that the update engine trains, for the probe. rollout, engine: the weights and
    the engine that generate; None where the device does not generate. generating: whether the device holds
    the rollout's weights and not the update's.
    """

    make: Callable[[Members], ReshardSetup]
    update: Mapping[str, Tensor]
    policy: PolicyModel | None
    rollout: RolloutBuffers | None
    engine: SlicedEngine | TakingEngine | None
    ledger: MemoryLedger
    vocab_size: int
    max_length: int
    generating: bool = False
    group: SyncGroup | None = None
    _joined: ReshardSetup | None = field(default=None, init=False)

    @property
    def planned(self) -> bool:
        """True: each device sends its slices."""
        return True

    @property
    def setup(self) -> ReshardSetup:
        """The current plan, which exists once this device has joined the others."""
        assert self._joined is not None, "a device joins the others before weights move"
        return self._joined

    def plan_among(self, members: Members) -> None:
        """Create the plan among these members, who all call it together, after all other groups were created.
        Raises WeightsError where the engines hold other slices than the plan has."""
        self._joined = self.make(members)

    def join(self, group: SyncGroup) -> None:
        """Join the group of all devices that train and all that generate; each number of them has another
        plan."""
        self.group = group
        with group.reporting_errors("the plan of a reshard"):
            self.plan_among(group)

    def leave(self) -> None:
        """Leave the group; devices that still wait for this one are notified. Release the weights that the
        plan refers to."""
        references: list[object] = [self.group]
        if self._joined is not None:
            self._joined.resharder.close()
            references += [self._joined.resharder, self._joined.members]
        if self.group is not None:
            self.group.close()
        self._joined = self.group = None
        # A group's destructor waits for pending sends, which others may never receive: it takes minutes.
        threading.Thread(target=references.clear, name="leaves a plan", daemon=True).start()

    def run(self, version: int) -> SyncReport:
        """Load version `version` into the rollout engine and verify it. Raises WeightsError where it differs
        from the trained weights, WorkerError when another device is lost."""
        started = time.time()
        with self._reporting_errors(version):
            self.ready_to_train()
            figures = self._reshard(version)
        span = StageSpan.since(started)
        return SyncReport(checksum="", span=span, reshard=figures, rests=self.rests)

    def send(self, version: int) -> SyncReport:
        """Act as `run` on devices that train; the others call `take`."""
        started = time.time()
        with self._reporting_errors(version):
            if self.group is not None and self.group.is_source:
                self.group.announce(version)
            self._exchange(version, self._allocate)
        return SyncReport(checksum="", span=StageSpan.since(started))

    def take(self, version: int, new: NewTensor) -> Tensor:
        """Receive the weights into other memory than the engine's; return the log-probs of the probe's tokens
        [T]. Raises as `run`."""
        with self._reporting_errors(version):
            return self._exchange(version, new).expected_T

    @contextmanager
    def _reporting_errors(self, version: int) -> Iterator[None]:
        """Notify all other devices of an error that occurs on this device alone."""
        try:
            yield
        except WorkerError as error:
            raise WorkerError(
                self._error_text(version, self.setup.resharder.give_up(error))
            ) from error
        except RuntimeError as error:
            text = self.setup.resharder.give_up(error)
            if text == str(error):  # no device is lost
                raise
            raise WorkerError(self._error_text(version, text)) from error
        except WeightsError:  # all devices compare the same sums and distances, and stop
            raise
        except Exception as error:  # on this device alone, such as a lack of memory for the probe
            self.setup.resharder.give_up(error)
            raise

    def end_generation(self) -> None:
        """Free the rollout's weights and cache, and start to copy the update's weights back."""
        if self.rests:
            assert self.engine is not None and self.rollout is not None, "who rests generates, too"
            self.generating = False
            self.engine.sleep()
            self.rollout.free()
            self.setup.strategy.prefetch()

    def ready_to_train(self) -> None:
        """Put the update's weights on the device before the following computations."""
        if self.swaps:
            self.end_generation()
            self.setup.strategy.to_update()

    def _reshard(self, version: int) -> ReshardFigures:
        other_bytes = self._other_bytes()
        with self.ledger.watch() as watch:
            moved, checks_began, gap = (
                self._exchange(version, self._allocate),
                time.perf_counter(),
                0.0,
            )
            if isinstance(self.engine, SlicedEngine):
                self.engine.filled(version)
            elif self.engine is not None and self.rests:
                self.engine.wake()  # its log-probs, too, need its cache
            if self.engine is not None:
                gap = gap_of(self.engine.token_logprobs(self.sequences), moved.expected_T)
            self.setup.checks.logprobs(gap, moved.sent_sums, moved.slices, version=version)
            compared = time.perf_counter() - checks_began
            if isinstance(self.engine, SlicedEngine) and self.rests:
                self.engine.wake()
        self.generating = self.swaps
        return self._figures(
            seconds=moved.seconds,
            peak_bytes=moved.peak_bytes - other_bytes,
            probe_gap=gap,
            check_seconds=moved.check_seconds + compared,
            checks=self.setup.checks.count + len(self.sequences),
            course=memory_timeline(thinned(watch.timeline)),
        )

    def _exchange(self, version: int, new: NewTensor) -> "_Moved":
        """Receive slices into `new` tensors, or through those into the engine; all devices compare their
        sums."""
        setup, clock = self.setup, [time.perf_counter()]
        if setup.merge is not None:
            setup.merge.refresh()
        expected_T = self._expected()
        sent_sums = setup.checks.sent_sums(self.update)
        clock.append(time.perf_counter())
        with self.ledger.watch() as watch:
            incoming = setup.strategy.to_rollout(new)
            slices, received = None, ReceivedSlices()
            if isinstance(self.engine, TakingEngine):
                local_pieces, recorded = (
                    setup.resharder.rollout_pieces,
                    setup.checks.recording(incoming, received),
                )
                pieces = ((local_pieces[name], tensor) for name, tensor in recorded)
                self.engine.take_slices(pieces, version=version)
            else:
                slices = dict(incoming)
        clock.append(time.perf_counter())
        if slices is not None:
            received = setup.checks.received_slices(slices)
        setup.checks.compare(sent_sums, received, version=version)
        clock.append(time.perf_counter())
        before, seconds, after = (end - start for start, end in itertools.pairwise(clock))
        return _Moved(
            expected_T=expected_T,
            sent_sums=sent_sums,
            slices=slices,
            peak_bytes=watch.total_bytes,
            seconds=seconds,
            check_seconds=before + after,
        )

    @property
    def sequences(self) -> list[list[int]]:
        """The token ids of the probe."""
        return probe_sequences(self.vocab_size, self.max_length)

    def _expected(self) -> Tensor:
        """Return the log-probs of all tokens from each sequence's second on [T]; those of the first device
        where some devices have no policy."""
        sequences = self.sequences
        if self.policy is not None:
            expected_T = policy_logprobs(self.policy, sequences)
        else:
            expected_T = torch.empty(sum(len(ids) - 1 for ids in sequences))
        if self.setup.apart:
            self.setup.resharder.wait(start_broadcast(expected_T, 0, self.setup.members.full_group))
        return expected_T

    def _allocate(self, local_piece: TensorBox) -> Tensor:
        assert self.rollout is not None, "only who generates wants slices"
        return self.rollout.allocate(local_piece)

    def _error_text(self, version: int, error: object) -> str:
        return f"reshard of weights version {version} on rank {self.setup.members.rank}: {error}; {REMEDY}"

    def _figures(self, **measured: Any) -> ReshardFigures:
        resharder = self.setup.resharder
        on_device = self.ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS)
        swapped = self.setup.strategy.swapped
        return ReshardFigures(
            **measured,
            received_bytes=self.received_bytes,
            delta_bytes=resharder.delta_bytes,
            released_bytes=swapped.num_bytes if swapped else 0,
            host_bytes=swapped.num_bytes if swapped else 0,
            kept_bytes=on_device,
            bound_bytes=self.bound_bytes,
            back_seconds=swapped.back_seconds if swapped else 0.0,
            waited_seconds=swapped.waited_seconds if swapped else 0.0,
            gather_seconds=resharder.gather_seconds,
            select_seconds=resharder.select_seconds,
            swap_seconds=swapped.leave_seconds if swapped else 0.0,
            swap_waited_seconds=swapped.leave_waited_seconds if swapped else 0.0,
        )

    @property
    def received_bytes(self) -> int:
        """Bytes received from other devices in a reshard."""
        plan = self.setup.plan
        loads, times = plan.loads, [(n, s.members) for n, s in enumerate(plan.stacks)]
        rank = self.setup.members.rank
        kind = next(n for n, devices in enumerate(loads.kinds) if rank in devices)
        return loads.total(loads.received, times)[kind]

    @property
    def bound_bytes(self) -> int:
        """The upper bound of a device's memory in a reshard.

        It is the larger layout's weights and two buckets; with `allgather`, the weights of both layouts.
        Tensors that share a storage count twice, since they are allocated and freed together. Adapters stay.
        """
        buckets, swapped = 2 * largest_bucket(self.setup.plan), self.setup.strategy.swapped
        if swapped is None or self.rollout is None:
            update = self.ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS)
            both_layouts = update + (self.rollout.num_bytes if self.rollout else 0)
            return both_layouts + buckets + self.setup.resharder.kept_bytes
        shared = swapped.largest_shared + self.rollout.largest_shared
        return (
            max(swapped.num_bytes, self.rollout.num_bytes)
            + buckets
            + 2 * shared
            + self._adapter_bytes
        )

    @property
    def _adapter_bytes(self) -> int:
        """Bytes of adapters, which stay on the device."""
        if self.policy is None or self.setup.merge is None:
            return 0
        return sum(local_rows(adapter).nbytes for _, adapter in self.policy.trained_parameters())

    @property
    def swaps(self) -> bool:
        """Whether the device holds one layout at a time."""
        return self._joined is not None and self._joined.strategy.swapped is not None

    @property
    def rests(self) -> bool:
        """Whether the rollout's weights and cache leave the device from the end of a generation to the next
        `run`."""
        sleeps = isinstance(self.engine, SleepingEngine) and self.engine.sleeps
        return self.swaps or (sleeps and self.policy is not None)

    def values(self, tensor: Tensor) -> Tensor:
        """Return the current values of a live tensor of the policy, on the device or on the host."""
        swapped = self._joined.strategy.swapped if self._joined is not None else None
        return tensor if swapped is None else swapped.values(tensor)

    def _other_bytes(self) -> int:
        """Return the bytes on the device that belong to neither layout."""
        layouts = (MemoryKind.UPDATE_WEIGHTS, MemoryKind.ROLLOUT_WEIGHTS)
        layout_bytes = sum(self.ledger.kind_bytes(kind) for kind in layouts)
        return self.ledger.total_bytes() - layout_bytes


def thinned(course: list[Moment], most: int = MOMENTS) -> list[Moment]:
    """Return at most this many moments: the fullest of each interval, and the first and the last."""
    inner = course[1:-1]
    stride = max(1, -(-len(inner) // (most - 2)))
    fullest = [
        max(inner[i : i + stride], key=lambda moment: sum(moment[1].values()))
        for i in range(0, len(inner), stride)
    ]
    return [*course[:1], *fullest, *course[1:][-1:]]


KINDS = {
    "update_bytes": MemoryKind.UPDATE_WEIGHTS,
    "rollout_bytes": MemoryKind.ROLLOUT_WEIGHTS,
    "buffer_bytes": MemoryKind.BUFFERS,
    "cache_bytes": MemoryKind.KV_CACHE,
}


def memory_timeline(moments: list[Moment]) -> dict[str, list[float]]:
    """Return a device's memory over time by the kinds of the report, a list for each kind."""
    by_name = {
        name: [float(bytes_by_kind.get(kind, 0)) for _, bytes_by_kind in moments]
        for name, kind in KINDS.items()
    }
    named_bytes = [sum(sizes) for sizes in zip(*by_name.values(), strict=True)]
    others = [
        sum(bytes_by_kind.values()) - named
        for (_, bytes_by_kind), named in zip(moments, named_bytes, strict=True)
    ]
    return {
        "seconds": [round(seconds, 6) for seconds, _ in moments],
        **by_name,
        "other_bytes": others,
    }
