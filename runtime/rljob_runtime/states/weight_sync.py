"""Weights from the update engine to the rollout engine, and the check that they arrived.

Ranks that share a model put each tensor together first. Colocated, every device then gives it to its own
rollout engine. Separated, update rank 0 broadcasts it to every rollout device; the group of these may be
another one in every step. A device that generates with others keeps its part of each tensor, and all of
them check what they hold together. `in_flight` takes what `send` gives while it generates.
"""

import collections
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_api.rljob import RLJobSpec
from rljob_runtime.backends.sync_group import SyncGroup
from rljob_runtime.engines.base import RolloutEngine
from rljob_runtime.engines.probe import Probing, check_probe, probe_gap
from rljob_runtime.engines.rollout import DTYPES
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.expert_names import held_dtype
from rljob_runtime.models.weight_stream import Announced, pack_outlines, unpack_outlines
from rljob_runtime.models.weights import WeightsDigest
from rljob_runtime.spans import Span
from rljob_runtime.states.held_policy import HeldPolicy
from rljob_runtime.states.reports import SyncReport
from rljob_runtime.states.reshard_checks import REMEDY


@dataclass(slots=True, kw_only=True)
class WeightSync:
    """One device's part.

    policy: what this device holds of the model in the update layout; a separated rollout device has one
    only where its engine is probed, and fills it from the broadcast. dtype: of the rollout engine's
    weights; synced: of what is sent. max_length: of the longest sequence that the engine takes. group:
    who exchanges weights with this device; None for a device that has its own. rests: whether the rollout's
    weights and cache are off the device from the end of a generation to the next `run`.
    """

    policy: HeldPolicy | None
    rollout: RolloutEngine | None
    dtype: torch.dtype
    synced: torch.dtype
    vocab_size: int
    max_length: int
    group: SyncGroup | None = None
    rests: bool = False

    def run(self, version: int) -> SyncReport:
        """Load version `version` into the rollout engine. Raises WeightsError if it is not there."""
        started = time.time()
        checksum = ""
        arriving = self._arriving()
        if isinstance(self.rollout, Probing):
            self.rollout.load_weights(arriving, version=version)
            if self.rests:
                self.rollout.wake()
            assert self.policy is not None, "what an engine is probed against"
            model, size = self.policy.model, self.vocab_size
            gap = probe_gap(self.rollout, model, vocab_size=size, max_length=self.max_length)
            check_probe(gap, dtype=self.dtype, version=version)
        else:
            sent = WeightsDigest(self.dtype)
            counted = Announced(outlines=arriving.outlines, weights=sent.of(arriving))
            if self.rollout is None:
                collections.deque(counted, maxlen=0)
            else:
                self.rollout.load_weights(counted, version=version)
                check_arrived(sent.hex(), self.rollout.checksum(), version)
            checksum = sent.hex()
        return SyncReport(checksum=checksum, span=Span.since(started), rests=self.rests)

    def end_generation(self) -> None:
        """Make room for what follows, where the engine can."""
        if self.rests and self.rollout is not None:
            self.rollout.sleep()

    def send(self, version: int) -> SyncReport:
        """As `run`, on devices that train, to others that go on generating.

        Raises WeightsError where one of those has not got all of them; then none of them switches.
        """
        if self.group is None:
            return self.run(version)
        started, group, policy = time.time(), self.group, self.policy
        assert policy is not None and group.is_source, "devices that generate are sent weights"
        outlines = self._outlines_sent(policy)
        group.announce(version)
        group.broadcast_bytes(pack_outlines(outlines))
        check_agreed(group.agree(), version)
        sent = WeightsDigest(self.dtype)
        collections.deque(sent.of(_sent(policy, outlines, group)), maxlen=0)
        group.broadcast_bytes(sent.hex().encode())
        check_agreed(group.agree(), version)
        return SyncReport(checksum=sent.hex(), span=Span.since(started))

    def _arriving(self) -> Announced:
        """All weights, each once all devices that exchange it have it."""
        policy, group = self.policy, self.group
        if group is not None and not group.is_source:
            outlines = unpack_outlines(group.broadcast_bytes())
            return Announced(outlines=outlines, weights=self._received(outlines, group))
        assert policy is not None, "a device that takes no weights has them"
        if group is None:
            return Announced(outlines=dict(policy.outlines()), weights=policy.whole_weights())
        outlines = self._outlines_sent(policy)
        group.broadcast_bytes(pack_outlines(outlines))
        return Announced(outlines=outlines, weights=_sent(policy, outlines, group))

    def _outlines_sent(self, policy: HeldPolicy) -> dict[str, Tensor]:
        return {
            name: outline.to("meta", held_dtype(name, self.synced))
            for name, outline in policy.outlines().items()
        }

    def _received(
        self, outlines: Mapping[str, Tensor], group: SyncGroup
    ) -> Iterator[tuple[str, Tensor]]:
        """One at a time, into the policy where there is one."""
        held = dict(self.policy.whole_weights()) if self.policy is not None else {}
        for name, outline in outlines.items():
            tensor = held[name] if held else torch.empty_like(outline, device="cpu")
            group.broadcast(tensor)
            yield name, tensor


def synced_dtype(spec: RLJobSpec) -> torch.dtype:
    """Of weights on their way to other devices: the narrower of both sides', as no more is to be known."""
    return min(
        DTYPES[spec.update.dtype], DTYPES[spec.rollout.dtype], key=lambda dtype: dtype.itemsize
    )


def _sent(
    policy: HeldPolicy, outlines: Mapping[str, Tensor], group: SyncGroup
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in policy.whole_weights():
        sent = tensor.to(outlines[name].dtype)
        group.broadcast(sent)
        yield name, sent


def check_agreed(problem: str, version: int) -> None:
    """Raise WeightsError where a device has a problem with what it was sent."""
    if problem:
        raise WeightsError(f"weights version {version}: {problem}; {REMEDY}")


def check_arrived(sent: str, held: str, version: int) -> None:
    """Raise WeightsError unless the two checksums are equal."""
    if sent != held:
        raise WeightsError(
            f"weights version {version} did not arrive in the rollout engine: it holds {held}, the "
            f"update engine {sent}; {REMEDY}"
        )
