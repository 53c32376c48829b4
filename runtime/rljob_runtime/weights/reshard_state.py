"""Weights from the update to the rollout layout of the same devices by the plan, and back from the host.

Called by the device worker, on all colocated devices together. `allgather-swap`: a device holds one layout at
a time; the update's weights lie on the host while it generates, and come back when it has. `allgather`: both
stay. Engines whose weights are not tensors of this process have `weight_sync` instead.
"""

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rljob_plan.resharding.figures import largest_bucket
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger, Moment
from rljob_runtime.errors import WeightsError, WorkerError
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.parallel.fully_sharded import held_rows
from rljob_runtime.record.reports import ReshardFigures, SyncReport
from rljob_runtime.record.spans import Span
from rljob_runtime.rollout.rollout_engine import SlicedEngine
from rljob_runtime.rollout.sync_probe import gap_of, policy_logprobs, probe_sequences
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.merging import AdapterMerge
from rljob_runtime.weights.reshard.strategies import Strategy
from rljob_runtime.weights.reshard_checks import REMEDY, ReshardChecks
from rljob_runtime.weights.rollout_weights import RolloutWeights

MOMENTS = 64
"""Of a device's memory that a reshard tells."""


@dataclass(slots=True, kw_only=True)
class Reshard:
    """One device's part.

    resharder, strategy, checks: of `plan`. update: the live tensors that are trained, by name. policy: what
    the update engine trains, for the probe. merge: of its adapters, where those are trained; they stay on the
    device. generating: whether the device holds the rollout's weights and
    not the update's.
    """

    plan: ReshardPlan
    device: int
    resharder: Resharder
    strategy: Strategy
    checks: ReshardChecks
    update: Mapping[str, Tensor]
    rollout: RolloutWeights
    engine: SlicedEngine
    policy: PolicyModel
    ledger: MemoryLedger
    vocab_size: int
    max_length: int
    merge: AdapterMerge | None = None
    generating: bool = False

    def run(self, version: int) -> SyncReport:
        """Bring version `version` into the rollout engine, checked. Raises WeightsError where it is not
        what was trained, WorkerError when another device is gone."""
        started = time.time()
        try:
            self.ready_to_train()
            figures = self._reshard(version)
        except WorkerError as error:
            raise WorkerError(self._where(version, self.resharder.give_up(error))) from error
        except RuntimeError as error:
            text = self.resharder.give_up(error)
            if text == str(error):  # nobody is gone
                raise
            raise WorkerError(self._where(version, text)) from error
        except WeightsError:  # all devices see the same sums and distances, and stop
            raise
        except (
            Exception
        ) as error:  # of this device alone, such as memory for what the probe computes
            self.resharder.give_up(error)
            raise
        span = Span.since(started)
        return SyncReport(checksum="", span=span, reshard=figures, rests=self.swaps)

    def end_generation(self) -> None:
        """The rollout's weights and its cache go, the update's begin to come back."""
        if self.swaps:
            self.generating = False
            self.engine.sleep()
            self.rollout.free()
            self.strategy.prefetch()

    def ready_to_train(self) -> None:
        """The update's weights are on the device for all that is computed from here on."""
        if self.swaps:
            self.end_generation()
            self.strategy.to_update()

    def _reshard(self, version: int) -> ReshardFigures:
        clock = [time.perf_counter()]
        if self.merge is not None:
            self.merge.refresh()
        sequences = probe_sequences(self.vocab_size, self.max_length)
        expected_T = policy_logprobs(self.policy, sequences)
        given = self.checks.given(self.update)
        clock.append(time.perf_counter())
        others = self._others()
        with self.ledger.watch() as whole:
            with self.ledger.watch() as watch:
                found = self.strategy.to_rollout(lambda piece: self.rollout.make(piece.tensor.name))
            clock.append(time.perf_counter())
            self.checks.compare(given, found, version=version)
            self.engine.filled(version)
            gap = gap_of(self.engine.token_logprobs(sequences), expected_T)
            self.checks.logprobs(gap, given, found, version=version)
            clock.append(time.perf_counter())
            if self.swaps:
                self.engine.wake()
        self.generating = self.swaps
        before, seconds, after = (end - start for start, end in itertools.pairwise(clock))
        return self._figures(
            seconds=seconds,
            peak_bytes=watch.total_bytes - others,
            probe_gap=gap,
            check_seconds=before + after,
            checks=self.checks.count + len(sequences),
            course=told(thinned(whole.course)),
        )

    def _where(self, version: int, error: object) -> str:
        return f"reshard of weights version {version} on rank {self.device}: {error}; {REMEDY}"

    def _figures(self, **measured: Any) -> ReshardFigures:
        kind = _kind(self.plan, self.device)
        loads, times = self.plan.loads, [(n, s.members) for n, s in enumerate(self.plan.stacks)]
        on_device = self.ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS)
        resting = self.strategy.resting
        return ReshardFigures(
            **measured,
            received_bytes=loads.total(loads.received, times)[kind],
            released_bytes=resting.num_bytes if resting else 0,
            host_bytes=resting.num_bytes if resting else 0,
            kept_bytes=on_device,
            bound_bytes=self.bound_bytes,
            back_seconds=resting.back_seconds if resting else 0.0,
            waited_seconds=resting.waited_seconds if resting else 0.0,
            gather_seconds=self.resharder.gather_seconds,
            select_seconds=self.resharder.select_seconds,
            swap_seconds=resting.leave_seconds if resting else 0.0,
            swap_waited_seconds=resting.leave_waited_seconds if resting else 0.0,
        )

    @property
    def bound_bytes(self) -> int:
        """The larger layout's weights and two buckets, with `allgather` the weights of both layouts; and
        twice what tensors that share a storage hold together, since it comes and goes as one. Adapters
        stay."""
        buckets, resting = 2 * largest_bucket(self.plan), self.strategy.resting
        if resting is None:
            update = self.ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS)
            return update + self.rollout.num_bytes + buckets
        shared = resting.largest_shared + self.rollout.largest_shared
        return max(resting.num_bytes, self.rollout.num_bytes) + buckets + 2 * shared + self._staying

    @property
    def _staying(self) -> int:
        """Bytes of adapters."""
        return sum(held_rows(adapter).nbytes for _, adapter in self.policy.trained_parameters()) * (
            self.merge is not None
        )

    @property
    def swaps(self) -> bool:
        """Whether the device holds one layout at a time."""
        return self.strategy.resting is not None

    def values(self, tensor: Tensor) -> Tensor:
        """Of a live tensor of the policy, wherever they are."""
        resting = self.strategy.resting
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


def _kind(plan: ReshardPlan, device: int) -> int:
    return next(n for n, devices in enumerate(plan.loads.kinds) if device in devices)
