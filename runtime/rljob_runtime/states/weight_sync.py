"""Weights from the update engine to the rollout engine, and the check that they arrived.

Colocated, a device gives its own rollout engine the weights of its own update engine. Separated,
update rank 0 broadcasts them tensor by tensor to every rollout rank.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_runtime.engines.base import RolloutEngine
from rljob_runtime.engines.probe import Probing, check_probe, probe_gap
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.base import PolicyModel
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.spans import Span
from rljob_runtime.states.reports import SyncReport

SOURCE_RANK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """One device's part.

    policy: this device's copy of the model in the update layout; separated rollout devices fill
    theirs from the broadcast. dtype: of the rollout engine's weights. max_length: of the longest
    sequence that it takes.
    """

    policy: PolicyModel
    rollout: RolloutEngine | None
    separated: bool
    dtype: torch.dtype
    vocab_size: int
    max_length: int

    def run(self, version: int) -> SyncReport:
        """Load version `version` into the rollout engine. Raises WeightsError if it is not there."""
        started = time.time()
        if self.separated:
            self._broadcast()
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

    def _broadcast(self) -> None:
        """Every tensor from update rank 0, [shape] → [shape] on all devices, each byte once a rank."""
        for _, tensor in self._weights():
            dist.broadcast(tensor, src=SOURCE_RANK)


def _compare(sent: str, held: str, version: int) -> None:
    if sent != held:
        raise WeightsError(
            f"weights version {version} did not arrive in the rollout engine: it holds {held}, the "
            f"update engine {sent}; the run stops, resume from the last checkpoint"
        )
