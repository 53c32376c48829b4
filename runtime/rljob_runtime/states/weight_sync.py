"""Weights from the update engine to the rollout engine, and the check that they arrived.

Colocated, a device gives its own rollout engine the weights of its own update engine. Separated,
update rank 0 broadcasts them tensor by tensor to every rollout device; the group of these may be
another one in every step.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.backends.sync_group import SyncGroup
from rljob_runtime.engines.base import RolloutEngine
from rljob_runtime.engines.probe import Probing, check_probe, probe_gap
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.base import PolicyModel
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.spans import Span
from rljob_runtime.states.reports import SyncReport


@dataclass(slots=True, kw_only=True)
class WeightSync:
    """One device's part.

    policy: this device's copy of the model in the update layout; separated rollout devices fill
    theirs from the broadcast. dtype: of the rollout engine's weights. max_length: of the longest
    sequence that it takes. group: who exchanges weights with this device; None for a device that has
    its own.
    """

    policy: PolicyModel
    rollout: RolloutEngine | None
    dtype: torch.dtype
    vocab_size: int
    max_length: int
    group: SyncGroup | None = None

    def run(self, version: int) -> SyncReport:
        """Load version `version` into the rollout engine. Raises WeightsError if it is not there."""
        started = time.time()
        if self.group is not None:
            for _, tensor in self._weights():
                self.group.broadcast(tensor)
        checksum = ""
        if isinstance(self.rollout, Probing):
            self.rollout.load_weights(self._weights(), version=version)
            gap = probe_gap(
                self.rollout, self.policy, vocab_size=self.vocab_size, max_length=self.max_length
            )
            check_probe(gap, dtype=self.dtype, version=version)
        else:
            checksum = weights_checksum(self._weights(), dtype=self.dtype)
            if self.rollout is not None:
                self.rollout.load_weights(self._weights(), version=version)
                _compare(checksum, self.rollout.checksum(), version)
        return SyncReport(checksum=checksum, span=Span.since(started))

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.policy.named_hf_parameters():
            yield name, parameter.detach()


def _compare(sent: str, held: str, version: int) -> None:
    if sent != held:
        raise WeightsError(
            f"weights version {version} did not arrive in the rollout engine: it holds {held}, the "
            f"update engine {sent}; the run stops, resume from the last checkpoint"
        )
