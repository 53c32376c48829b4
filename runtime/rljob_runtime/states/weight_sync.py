"""Weights from the update engine to the rollout engine, and the check that they arrived.

Ranks that share a model put each tensor together first. Colocated, every device then gives it to its own
rollout engine. Separated, update rank 0 broadcasts it to every rollout device; the group of these may be
another one in every step.
"""

import collections
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.backends.sync_group import SyncGroup
from rljob_runtime.engines.base import RolloutEngine
from rljob_runtime.engines.probe import Probing, check_probe, probe_gap
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.weights import WeightsDigest
from rljob_runtime.spans import Span
from rljob_runtime.states.held_policy import HeldPolicy
from rljob_runtime.states.reports import SyncReport


@dataclass(slots=True, kw_only=True)
class WeightSync:
    """One device's part.

    policy: what this device holds of the model in the update layout; separated rollout devices fill
    theirs from the broadcast. dtype: of the rollout engine's weights. max_length: of the longest
    sequence that it takes. group: who exchanges weights with this device; None for a device that has
    its own.
    """

    policy: HeldPolicy
    rollout: RolloutEngine | None
    dtype: torch.dtype
    vocab_size: int
    max_length: int
    group: SyncGroup | None = None

    def run(self, version: int) -> SyncReport:
        """Load version `version` into the rollout engine. Raises WeightsError if it is not there."""
        started = time.time()
        checksum = ""
        if isinstance(self.rollout, Probing):
            self.rollout.load_weights(self._arriving(), version=version)
            model, size = self.policy.model, self.vocab_size
            gap = probe_gap(self.rollout, model, vocab_size=size, max_length=self.max_length)
            check_probe(gap, dtype=self.dtype, version=version)
        else:
            sent = WeightsDigest(self.dtype)
            arriving = sent.of(self._arriving())
            if self.rollout is None:
                collections.deque(arriving, maxlen=0)
            else:
                self.rollout.load_weights(arriving, version=version)
                _compare(sent.hex(), self.rollout.checksum(), version)
            checksum = sent.hex()
        return SyncReport(checksum=checksum, span=Span.since(started))

    def _arriving(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight once all devices that exchange it have it."""
        for name, tensor in self.policy.whole_weights():
            if self.group is not None:
                self.group.broadcast(tensor)
            yield name, tensor


def _compare(sent: str, held: str, version: int) -> None:
    if sent != held:
        raise WeightsError(
            f"weights version {version} did not arrive in the rollout engine: it holds {held}, the "
            f"update engine {sent}; the run stops, resume from the last checkpoint"
        )
