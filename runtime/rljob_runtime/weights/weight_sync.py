"""Send full weights from the update engine to the rollout engine, and check that they arrived.

Ranks that share a model gather each tensor first. Colocated, every device then loads it into its local
rollout engine. Separated, update rank 0 broadcasts it to every rollout device; their group may change in
every step. A device that generates with others keeps its slice of each tensor, and all of them verify their
slices together. `in_flight` receives what `send` sends while it generates.
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
from rljob_runtime.weights.held_policy import LocalPolicy
from rljob_runtime.weights.reshard_checks import REMEDY


@dataclass(slots=True, kw_only=True)
class WeightSync:
    """One device's end of the weight sync.

    policy: this device's shard of the model in the update layout; a separated rollout device has one only
    where its engine is probed, and fills it from the broadcast. dtype: of the rollout engine's weights;
    synced: of the weights in transit. max_length: of the longest sequence that the engine takes. group: the
    devices that exchange weights with this one; None for a device with a local policy. rests: whether the
    rollout's weights and cache leave the device from the end of a generation to the next `run`. int8: whether
    it holds matrices in 8 bits.
    """

    policy: LocalPolicy | None
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
        """False: one device sends full tensors."""
        return False

    def join(self, group: SyncGroup) -> None:
        """Join the group of the first device that trains and all that generate."""
        self.group = group

    def leave(self) -> None:
        """Leave the group; devices that still wait for this one are notified."""
        if self.group is not None:
            self.group.close()
        self.group = None

    def run(self, version: int) -> SyncReport:
        """Load version `version` into the rollout engine. Raises WeightsError if it did not arrive."""
        started = time.time()
        checksum = ""
        if isinstance(self.rollout, Probing):
            with self._reporting_errors(version):
                self.rollout.load_weights(self._incoming_weights(version), version=version)
            if self.rests:
                self.rollout.wake()
            assert self.policy is not None, "what an engine is probed against"
            model, size = self.policy.model, self.vocab_size
            gap = probe_gap(self.rollout, model, vocab_size=size, max_length=self.max_length)
            check_probe(gap, dtype=torch.int8 if self.int8 else self.dtype, version=version)
        else:
            sent = WeightsDigest(self.dtype)
            with self._reporting_errors(version):
                incoming = self._incoming_weights(version)
                counted = AnnouncedWeights(outlines=incoming.outlines, weights=sent.of(incoming))
                if self.rollout is None:
                    collections.deque(counted, maxlen=0)
                else:
                    self.rollout.load_weights(counted, version=version)
            checksum = sent.hex()
            if self.rollout is not None:
                check_arrived(checksum, self.rollout.checksum(), version)
        return SyncReport(checksum=checksum, span=StageSpan.since(started), rests=self.rests)

    def end_generation(self) -> None:
        """Free memory for the following work, where the engine can."""
        if self.rests and self.rollout is not None:
            self.rollout.sleep()

    def send(self, version: int) -> SyncReport:
        """Act as `run` on devices that train, while the receivers continue to generate.

        Raises WeightsError where a receiver has not received all weights; then no receiver switches.
        """
        started, group, policy = time.time(), self.group, self.policy
        assert policy is not None, "devices that generate are sent weights"
        expected_T = policy_logprobs(
            policy.model, probe_sequences(self.vocab_size, self.max_length)
        )
        if group is None:
            return self.run(version)
        assert group.is_source, "one device sends"
        outlines, label = self._outlines_sent(policy), weights_named(version)
        with group.reporting_errors(label):
            group.announce(version)
            group.broadcast_bytes(pack_outlines(outlines), f"{label}, names")
            problem = group.agree(description=f"{label}, names")
        check_agreed(problem, version)
        sent = WeightsDigest(self.dtype)
        with group.reporting_errors(label):
            collections.deque(sent.of(_sent(policy, outlines, group, label)), maxlen=0)
            seal = Seal(checksum=sent.hex(), logprobs=expected_T.tolist())
            group.broadcast_bytes(seal.packed(), f"{label}, their sum")
            problem = group.agree(description=f"{label}, their sum")
        check_agreed(problem, version)
        return SyncReport(checksum=sent.hex(), span=StageSpan.since(started))

    def ready_to_train(self) -> None:
        """Do nothing, since the weights stay on the device."""

    def values(self, tensor: Tensor) -> Tensor:
        """Return the tensor, whose values are in its own memory."""
        return tensor

    def _reporting_errors(self, version: int) -> AbstractContextManager[None]:
        """Notify all devices that exchange weights with this one of an error that occurs here alone."""
        return self.group.reporting_errors(weights_named(version)) if self.group else nullcontext()

    def _incoming_weights(self, version: int) -> AnnouncedWeights:
        """Return all weights, each once all devices that exchange it have it."""
        policy, group, label = self.policy, self.group, weights_named(version)
        if group is not None and not group.is_source:
            outlines = unpack_outlines(group.broadcast_bytes(description=f"{label}, names"))
            return AnnouncedWeights(
                outlines=outlines, weights=self._received(outlines, group, label)
            )
        assert policy is not None, "a device that takes no weights has them"
        if group is None:
            return AnnouncedWeights(outlines=dict(policy.outlines()), weights=policy.full_weights())
        outlines = self._outlines_sent(policy)
        group.broadcast_bytes(pack_outlines(outlines), f"{label}, names")
        return AnnouncedWeights(outlines=outlines, weights=_sent(policy, outlines, group, label))

    def _outlines_sent(self, policy: LocalPolicy) -> dict[str, Tensor]:
        return {
            name: outline.to("meta", weight_dtype(name, self.synced))
            for name, outline in policy.outlines().items()
        }

    def _received(
        self, outlines: Mapping[str, Tensor], group: SyncGroup, label: str
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield one tensor at a time, received into the policy where there is one."""
        policy_weights = dict(self.policy.full_weights()) if self.policy is not None else {}
        for name, outline in outlines.items():
            tensor = (
                policy_weights[name] if policy_weights else torch.empty_like(outline, device="cpu")
            )
            group.broadcast(tensor, f"{label}, {name}")
            yield name, tensor


def synced_dtype(spec: RLJobSpec) -> torch.dtype:
    """Return the dtype of weights in transit: the narrower of both sides', as a wider one would carry no more
    information."""
    return min(
        DTYPES[spec.update.dtype], DTYPES[spec.rollout.dtype], key=lambda dtype: dtype.itemsize
    )


def _sent(
    policy: LocalPolicy, outlines: Mapping[str, Tensor], group: SyncGroup, label: str
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in policy.full_weights():
        sent = tensor.to(outlines[name].dtype)
        group.broadcast(sent, f"{label}, {name}")
        yield name, sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The message after the tensors of a version. checksum: of all. logprobs: of the probe's tokens, natural
    log, under the weights as they are trained."""

    checksum: str
    logprobs: list[float]

    def packed(self) -> bytes:
        """Return the seal as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, content: bytes) -> "Seal":
        """Parse the output of `packed`."""
        return cls(**json.loads(content))


def weights_named(version: int) -> str:
    """Return a version's label for messages."""
    return f"weights version {version}"


def check_agreed(problem: str, version: int) -> None:
    """Raise WeightsError where a device reports a problem with the weights that it received."""
    if problem:
        raise WeightsError(f"weights version {version}: {problem}; {REMEDY}")


def check_arrived(sent: str, received: str, version: int) -> None:
    """Raise WeightsError unless the two checksums are equal."""
    if sent != received:
        raise WeightsError(
            f"weights version {version} did not arrive in the rollout engine: it holds {received}, the "
            f"update engine {sent}; {REMEDY}"
        )
