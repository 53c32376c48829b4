"""Weights from the update engine to the rollout engine, and the check that they arrived.

Ranks that share a model put each tensor together first. Colocated, every device then gives it to its own
rollout engine. Separated, update rank 0 broadcasts it to every rollout device; the group of these may be
another one in every step. A device that generates with others keeps its part of each tensor, and all of
them check what they hold together. `in_flight` takes what `send` gives while it generates.
"""

import collections
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from rljob_api.spec.rljob import RLJobSpec
from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.models.weight_stream import AnnouncedWeights, pack_outlines, unpack_outlines
from rljob_runtime.models.weights import WeightsDigest
from rljob_runtime.record.reports import SyncReport
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.rollout.rollout_engine import RolloutEngine
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.rollout.sync_probe import (
    Probing,
    check_probe,
    policy_logprobs,
    probe_gap,
    probe_sequences,
)
from rljob_runtime.weights.held_policy import HeldPolicy
from rljob_runtime.weights.reshard_checks import REMEDY


@dataclass(slots=True, kw_only=True)
class WeightSync:
    """One device's part.

    policy: what this device holds of the model in the update layout; a separated rollout device has one
    only where its engine is probed, and fills it from the broadcast. dtype: of the rollout engine's
    weights; synced: of what is sent. max_length: of the longest sequence that the engine takes. group:
    who exchanges weights with this device; None for a device that has its own. rests: whether the rollout's
    weights and cache are off the device from the end of a generation to the next `run`. int8: whether it
    holds matrices in 8 bits.
    """

    policy: HeldPolicy | None
    rollout: RolloutEngine | None
    dtype: torch.dtype
    synced: torch.dtype
    vocab_size: int
    max_length: int
    group: SyncGroup | None = None
    rests: bool = False
    int8: bool = False

    @property
    def planned(self) -> bool:
        """Whole tensors come from one device."""
        return False

    def join(self, group: SyncGroup) -> None:
        """Of the first device that trains and all that generate."""
        self.group = group

    def leave(self) -> None:
        """Who still waits for this device hears it."""
        if self.group is not None:
            self.group.close()
        self.group = None

    def run(self, version: int) -> SyncReport:
        """Load version `version` into the rollout engine. Raises WeightsError if it is not there."""
        started = time.time()
        checksum = ""
        if isinstance(self.rollout, Probing):
            with self._telling(version):
                self.rollout.load_weights(self._arriving(version), version=version)
            if self.rests:
                self.rollout.wake()
            assert self.policy is not None, "what an engine is probed against"
            model, size = self.policy.model, self.vocab_size
            gap = probe_gap(self.rollout, model, vocab_size=size, max_length=self.max_length)
            check_probe(gap, dtype=torch.int8 if self.int8 else self.dtype, version=version)
        else:
            sent = WeightsDigest(self.dtype)
            with self._telling(version):
                arriving = self._arriving(version)
                counted = AnnouncedWeights(outlines=arriving.outlines, weights=sent.of(arriving))
                if self.rollout is None:
                    collections.deque(counted, maxlen=0)
                else:
                    self.rollout.load_weights(counted, version=version)
            checksum = sent.hex()
            if self.rollout is not None:
                check_arrived(checksum, self.rollout.checksum(), version)
        return SyncReport(checksum=checksum, span=StageSpan.since(started), rests=self.rests)

    def end_generation(self) -> None:
        """Make room for what follows, where the engine can."""
        if self.rests and self.rollout is not None:
            self.rollout.sleep()

    def send(self, version: int) -> SyncReport:
        """As `run`, on devices that train, to others that go on generating.

        Raises WeightsError where one of those has not got all of them; then none of them switches.
        """
        started, group, policy = time.time(), self.group, self.policy
        assert policy is not None, "devices that generate are sent weights"
        expected_T = policy_logprobs(
            policy.model, probe_sequences(self.vocab_size, self.max_length)
        )
        if group is None:
            return self.run(version)
        assert group.is_source, "one device sends"
        outlines, named = self._outlines_sent(policy), weights_named(version)
        with group.reporting_errors(named):
            group.announce(version)
            group.broadcast_bytes(pack_outlines(outlines), f"{named}, names")
            problem = group.agree(description=f"{named}, names")
        check_agreed(problem, version)
        sent = WeightsDigest(self.dtype)
        with group.reporting_errors(named):
            collections.deque(sent.of(_sent(policy, outlines, group, named)), maxlen=0)
            seal = Seal(checksum=sent.hex(), logprobs=expected_T.tolist())
            group.broadcast_bytes(seal.packed(), f"{named}, their sum")
            problem = group.agree(description=f"{named}, their sum")
        check_agreed(problem, version)
        return SyncReport(checksum=sent.hex(), span=StageSpan.since(started))

    def ready_to_train(self) -> None:
        """They stay on the device."""

    def values(self, tensor: Tensor) -> Tensor:
        """Where it is."""
        return tensor

    def _telling(self, version: int) -> AbstractContextManager[None]:
        """What fails here alone, all hear who exchange weights with this device."""
        return self.group.reporting_errors(weights_named(version)) if self.group else nullcontext()

    def _arriving(self, version: int) -> AnnouncedWeights:
        """All weights, each once all devices that exchange it have it."""
        policy, group, named = self.policy, self.group, weights_named(version)
        if group is not None and not group.is_source:
            outlines = unpack_outlines(group.broadcast_bytes(description=f"{named}, names"))
            return AnnouncedWeights(
                outlines=outlines, weights=self._received(outlines, group, named)
            )
        assert policy is not None, "a device that takes no weights has them"
        if group is None:
            return AnnouncedWeights(
                outlines=dict(policy.outlines()), weights=policy.whole_weights()
            )
        outlines = self._outlines_sent(policy)
        group.broadcast_bytes(pack_outlines(outlines), f"{named}, names")
        return AnnouncedWeights(outlines=outlines, weights=_sent(policy, outlines, group, named))

    def _outlines_sent(self, policy: HeldPolicy) -> dict[str, Tensor]:
        return {
            name: outline.to("meta", weight_dtype(name, self.synced))
            for name, outline in policy.outlines().items()
        }

    def _received(
        self, outlines: Mapping[str, Tensor], group: SyncGroup, named: str
    ) -> Iterator[tuple[str, Tensor]]:
        """One at a time, into the policy where there is one."""
        held = dict(self.policy.whole_weights()) if self.policy is not None else {}
        for name, outline in outlines.items():
            tensor = held[name] if held else torch.empty_like(outline, device="cpu")
            group.broadcast(tensor, f"{named}, {name}")
            yield name, tensor


def synced_dtype(spec: RLJobSpec) -> torch.dtype:
    """Of weights on their way to other devices: the narrower of both sides', as no more is to be known."""
    return min(
        DTYPES[spec.update.dtype], DTYPES[spec.rollout.dtype], key=lambda dtype: dtype.itemsize
    )


def _sent(
    policy: HeldPolicy, outlines: Mapping[str, Tensor], group: SyncGroup, named: str
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in policy.whole_weights():
        sent = tensor.to(outlines[name].dtype)
        group.broadcast(sent, f"{named}, {name}")
        yield name, sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What follows the tensors of a version. checksum: of all. logprobs: of the probe's tokens, natural log,
    under the weights as they are trained."""

    checksum: str
    logprobs: list[float]

    def packed(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, content: bytes) -> "Seal":
        """What `packed` made."""
        return cls(**json.loads(content))


def weights_named(version: int) -> str:
    """For messages."""
    return f"weights version {version}"


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
