"""Weights from the update to the rollout layout by the plan, and back from the host. Made by `resharding`.

Called by the device worker, on all devices together, of which each trains, generates or does both.
`allgather-swap`: a device that does both holds one layout at a time; the update's weights lie on the host
while it generates, and come back when it has. `allgather`: what it holds stays. Engines whose weights are not
tensors of this process have `weight_sync` instead.
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
from rljob_runtime.parallel.fully_sharded import held_rows
from rljob_runtime.record.reports import ReshardFigures, SyncReport
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.rollout.rollout_engine import SleepingEngine, SlicedEngine, TakingEngine
from rljob_runtime.rollout.sync_probe import gap_of, policy_logprobs, probe_sequences
from rljob_runtime.weights.reshard.executor import New, Resharder
from rljob_runtime.weights.reshard.merging import AdapterMerge
from rljob_runtime.weights.reshard.strategies import Strategy
from rljob_runtime.weights.reshard_checks import REMEDY, ReshardChecks, Taken
from rljob_runtime.weights.rollout_weights import RolloutRoom

MOMENTS = 64
"""Of a device's memory that a reshard tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan among its members, and this device's part of it. merge: of adapters, where those are trained;
    they stay on the device."""

    plan: ReshardPlan
    members: Members
    resharder: Resharder
    strategy: Strategy
    checks: ReshardChecks
    merge: AdapterMerge | None

    @property
    def apart(self) -> bool:
        """Whether some of them hold no policy."""
        return self.plan.update.devices != self.plan.rollout.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """What a reshard brought. expected_T: log-probs under the policy. given: sums of what this device gave;
    found: its slices, None where an engine took them. seconds: of the moves, without checks."""

    expected_T: Tensor
    given: list[Tensor]
    found: Mapping[str, Tensor] | None
    peak_bytes: int
    seconds: float
    check_seconds: float


@dataclass(slots=True, kw_only=True)
class Reshard:
    """One device's part: a `Port`.

    make: a plan among members, which all call it together. update: the live tensors that are trained, by
    name, and policy: what the update engine trains, for the probe; rollout, engine: what generates; none
    where the device does not. generating: whether the device holds the rollout's weights and not the
    update's.
    """

    make: Callable[[Members], Planned]
    update: Mapping[str, Tensor]
    policy: PolicyModel | None
    rollout: RolloutRoom | None
    engine: SlicedEngine | TakingEngine | None
    ledger: MemoryLedger
    vocab_size: int
    max_length: int
    generating: bool = False
    group: SyncGroup | None = None
    _joined: Planned | None = field(default=None, init=False)

    @property
    def planned(self) -> bool:
        """Each gives its slices."""
        return True

    @property
    def on(self) -> Planned:
        """The plan of now."""
        assert self._joined is not None, "a device joins the others before weights move"
        return self._joined

    def meet(self, members: Members) -> None:
        """Make the plan among these, who all call it together, after all other groups were made. Raises
        WeightsError where the engines hold other slices than the plan has."""
        self._joined = self.make(members)

    def join(self, group: SyncGroup) -> None:
        """Of all devices that train and all that generate; the plan is another one for each number of
        them."""
        self.group = group
        with group.reporting_errors("the plan of a reshard"):
            self.meet(group)

    def leave(self) -> None:
        """Who still waits for this device hears it. Weights are held here no more."""
        last: list[object] = [self.group]
        if self._joined is not None:
            self._joined.resharder.close()
            last += [self._joined.resharder, self._joined.members]
        if self.group is not None:
            self.group.close()
        self._joined = self.group = None
        # groups end with what is on its way in them, which others may never take: in minutes
        threading.Thread(target=last.clear, name="leaves a plan", daemon=True).start()

    def run(self, version: int) -> SyncReport:
        """Bring version `version` into the rollout engine, checked. Raises WeightsError where it is not
        what was trained, WorkerError when another device is gone."""
        started = time.time()
        with self._telling(version):
            self.ready_to_train()
            figures = self._reshard(version)
        span = StageSpan.since(started)
        return SyncReport(checksum="", span=span, reshard=figures, rests=self.rests)

    def send(self, version: int) -> SyncReport:
        """As `run`, on devices that train; the others call `take`."""
        started = time.time()
        with self._telling(version):
            if self.group is not None and self.group.is_source:
                self.group.announce(version)
            self._exchange(version, self._made)
        return SyncReport(checksum="", span=StageSpan.since(started))

    def take(self, version: int, new: New) -> Tensor:
        """What was sent, into other memory than the engine's; log-probs of the probe's tokens [T]. Raises as
        `run`."""
        with self._telling(version):
            return self._exchange(version, new).expected_T

    @contextmanager
    def _telling(self, version: int) -> Iterator[None]:
        """What fails here alone, all others hear."""
        try:
            yield
        except WorkerError as error:
            raise WorkerError(self._where(version, self.on.resharder.give_up(error))) from error
        except RuntimeError as error:
            text = self.on.resharder.give_up(error)
            if text == str(error):  # nobody is gone
                raise
            raise WorkerError(self._where(version, text)) from error
        except WeightsError:  # all devices see the same sums and distances, and stop
            raise
        except (
            Exception
        ) as error:  # of this device alone, such as memory for what the probe computes
            self.on.resharder.give_up(error)
            raise

    def end_generation(self) -> None:
        """The rollout's weights and its cache go, the update's begin to come back."""
        if self.rests:
            assert self.engine is not None and self.rollout is not None, "who rests generates, too"
            self.generating = False
            self.engine.sleep()
            self.rollout.free()
            self.on.strategy.prefetch()

    def ready_to_train(self) -> None:
        """The update's weights are on the device for all that is computed from here on."""
        if self.swaps:
            self.end_generation()
            self.on.strategy.to_update()

    def _reshard(self, version: int) -> ReshardFigures:
        others = self._others()
        with self.ledger.watch() as whole:
            moved, began, gap = self._exchange(version, self._made), time.perf_counter(), 0.0
            if isinstance(self.engine, SlicedEngine):
                self.engine.filled(version)
            elif self.engine is not None and self.rests:
                self.engine.wake()  # its log-probs, too, need its cache
            if self.engine is not None:
                gap = gap_of(self.engine.token_logprobs(self.sequences), moved.expected_T)
            self.on.checks.logprobs(gap, moved.given, moved.found, version=version)
            compared = time.perf_counter() - began
            if isinstance(self.engine, SlicedEngine) and self.rests:
                self.engine.wake()
        self.generating = self.swaps
        return self._figures(
            seconds=moved.seconds,
            peak_bytes=moved.peak_bytes - others,
            probe_gap=gap,
            check_seconds=moved.check_seconds + compared,
            checks=self.on.checks.count + len(self.sequences),
            course=told(thinned(whole.timeline)),
        )

    def _exchange(self, version: int, new: New) -> "_Moved":
        """Slices into `new` tensors, or through those into the engine; all devices compare their sums."""
        on, clock = self.on, [time.perf_counter()]
        if on.merge is not None:
            on.merge.refresh()
        expected_T = self._expected()
        given = on.checks.given(self.update)
        clock.append(time.perf_counter())
        with self.ledger.watch() as watch:
            arriving = on.strategy.to_rollout(new)
            found, taken = None, Taken()
            if isinstance(self.engine, TakingEngine):
                wanted, noted = on.resharder.wanted, on.checks.noted(arriving, taken)
                pieces = ((wanted[name], own) for name, own in noted)
                self.engine.take_slices(pieces, version=version)
            else:
                found = dict(arriving)
        clock.append(time.perf_counter())
        if found is not None:
            taken = on.checks.taken(found)
        on.checks.compare(given, taken, version=version)
        clock.append(time.perf_counter())
        before, seconds, after = (end - start for start, end in itertools.pairwise(clock))
        return _Moved(
            expected_T=expected_T,
            given=given,
            found=found,
            peak_bytes=watch.total_bytes,
            seconds=seconds,
            check_seconds=before + after,
        )

    @property
    def sequences(self) -> list[list[int]]:
        """Token ids of the probe."""
        return probe_sequences(self.vocab_size, self.max_length)

    def _expected(self) -> Tensor:
        """Log-probs of all tokens from each sequence's second on [T]; of the first device where some have no
        policy."""
        sequences = self.sequences
        if self.policy is not None:
            expected_T = policy_logprobs(self.policy, sequences)
        else:
            expected_T = torch.empty(sum(len(ids) - 1 for ids in sequences))
        if self.on.apart:
            self.on.resharder.wait(start_broadcast(expected_T, 0, self.on.members.full_group))
        return expected_T

    def _made(self, piece: TensorBox) -> Tensor:
        assert self.rollout is not None, "only who generates wants slices"
        return self.rollout.make(piece)

    def _where(self, version: int, error: object) -> str:
        return f"reshard of weights version {version} on rank {self.on.members.rank}: {error}; {REMEDY}"

    def _figures(self, **measured: Any) -> ReshardFigures:
        resharder = self.on.resharder
        on_device = self.ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS)
        resting = self.on.strategy.resting
        return ReshardFigures(
            **measured,
            received_bytes=self.received_bytes,
            delta_bytes=resharder.delta_bytes,
            released_bytes=resting.num_bytes if resting else 0,
            host_bytes=resting.num_bytes if resting else 0,
            kept_bytes=on_device,
            bound_bytes=self.bound_bytes,
            back_seconds=resting.back_seconds if resting else 0.0,
            waited_seconds=resting.waited_seconds if resting else 0.0,
            gather_seconds=resharder.gather_seconds,
            select_seconds=resharder.select_seconds,
            swap_seconds=resting.leave_seconds if resting else 0.0,
            swap_waited_seconds=resting.leave_waited_seconds if resting else 0.0,
        )

    @property
    def received_bytes(self) -> int:
        """From other devices, in a reshard."""
        plan = self.on.plan
        loads, times = plan.loads, [(n, s.members) for n, s in enumerate(plan.stacks)]
        rank = self.on.members.rank
        kind = next(n for n, devices in enumerate(loads.kinds) if rank in devices)
        return loads.total(loads.received, times)[kind]

    @property
    def bound_bytes(self) -> int:
        """The larger layout's weights and two buckets, with `allgather` the weights of both layouts; and
        twice what tensors that share a storage hold together, since it comes and goes as one. Adapters
        stay."""
        buckets, resting = 2 * largest_bucket(self.on.plan), self.on.strategy.resting
        if resting is None or self.rollout is None:
            update = self.ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS)
            both = update + (self.rollout.num_bytes if self.rollout else 0)
            return both + buckets + self.on.resharder.kept_bytes
        shared = resting.largest_shared + self.rollout.largest_shared
        return max(resting.num_bytes, self.rollout.num_bytes) + buckets + 2 * shared + self._staying

    @property
    def _staying(self) -> int:
        """Bytes of adapters."""
        if self.policy is None or self.on.merge is None:
            return 0
        return sum(held_rows(adapter).nbytes for _, adapter in self.policy.trained_parameters())

    @property
    def swaps(self) -> bool:
        """Whether the device holds one layout at a time."""
        return self._joined is not None and self._joined.strategy.resting is not None

    @property
    def rests(self) -> bool:
        """Whether the rollout's weights and cache are off the device from the end of a generation to the next
        `run`."""
        sleeps = isinstance(self.engine, SleepingEngine) and self.engine.sleeps
        return self.swaps or (sleeps and self.policy is not None)

    def values(self, tensor: Tensor) -> Tensor:
        """Of a live tensor of the policy, wherever they are."""
        resting = self._joined.strategy.resting if self._joined is not None else None
        return tensor if resting is None else resting.values(tensor)

    def _others(self) -> int:
        """Bytes on the device that are of neither layout."""
        layouts = (MemoryKind.UPDATE_WEIGHTS, MemoryKind.ROLLOUT_WEIGHTS)
        own = sum(self.ledger.kind_bytes(kind) for kind in layouts)
        return self.ledger.total_bytes() - own


def thinned(course: list[Moment], most: int = MOMENTS) -> list[Moment]:
    """At most so many moments: of each stretch the fullest, and the first and the last."""
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


def told(moments: list[Moment]) -> dict[str, list[float]]:
    """A device's memory by what the report tells apart, a list for each."""
    named = {
        name: [float(held.get(kind, 0)) for _, held in moments] for name, kind in KINDS.items()
    }
    known = [sum(sizes) for sizes in zip(*named.values(), strict=True)]
    others = [sum(held.values()) - of for (_, held), of in zip(moments, known, strict=True)]
    return {"seconds": [round(when, 6) for when, _ in moments], **named, "other_bytes": others}
