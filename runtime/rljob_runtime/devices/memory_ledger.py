"""A ledger of a device's memory: bytes by kind, for as long as their tensors' storages live.

Engines track their allocations; an emulated device refuses allocations above its limit, and the peaks go into
metrics. Nothing is released explicitly: a storage counts until it is freed or resized to 0.
"""

import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from rljob_runtime.errors import DeviceMemoryError

REMEDY = (
    "lower spec.batch.microBatchSize or spec.rollout.maxSequences, spread the model over more devices, "
    "or, where devices are emulated, raise spec.accelerator.memory"
)


class MemoryKind(StrEnum):
    """The uses of device memory."""

    UPDATE_WEIGHTS = "update weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    ROLLOUT_WEIGHTS = "rollout weights"
    KV_CACHE = "kv cache"
    REFERENCE_WEIGHTS = "reference weights"
    CRITIC_WEIGHTS = "critic weights"
    VISION_TOWER = "vision tower"
    BUFFERS = "buffers"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Bytes on a device. peaks: largest so far; the kinds may peak at different times."""

    device: str
    limit_bytes: int | None
    total_bytes: int
    total_peak_bytes: int
    kind_bytes: dict[str, int]
    kind_peak_bytes: dict[str, int]


Moment = tuple[float, dict[MemoryKind, int]]
"""Seconds, and the bytes by kind at that time."""


@dataclass(slots=True)
class PeakWatch:
    """Peak and timeline of a period. total_bytes: largest sum since its start. timeline: bytes by kind at the
    start and at each observed change, with seconds since the start."""

    total_bytes: int
    timeline: list[Moment] = field(default_factory=list)
    _start_s: float = field(default_factory=time.perf_counter)

    def observe(self, kind_bytes: dict[MemoryKind, int]) -> None:
        """Record the bytes that are in use now."""
        self.total_bytes = max(self.total_bytes, sum(kind_bytes.values()))
        if not self.timeline or kind_bytes != self.timeline[-1][1]:
            self.timeline.append((time.perf_counter() - self._start_s, kind_bytes))


class MemoryLedger:
    """Counts the bytes of tracked tensors; a shared storage counts once.

    device: name for messages. limit_bytes: None for no limit.
    """

    def __init__(self, *, device: str, limit_bytes: int | None = None) -> None:
        self.device = device
        self.limit_bytes = limit_bytes
        self._entries: dict[int, tuple[MemoryKind, weakref.ref[torch.UntypedStorage]]] = {}
        self._peaks: dict[MemoryKind, int] = {}
        self._total_peak = 0
        self._watches: list[PeakWatch] = []

    @contextmanager
    def watch(self) -> Iterator["PeakWatch"]:
        """Measure the peak during the body, independent of `reset_peaks`."""
        watch = PeakWatch(0)
        self._watches.append(watch)
        self._raise_peaks()
        try:
            yield watch
            self._raise_peaks()
        finally:
            self._watches.remove(watch)

    def track(self, kind: MemoryKind, tensors: Iterable[Tensor]) -> None:
        """Count the storages of these tensors until they are freed; a storage keeps its first kind.

        Raises DeviceMemoryError, with none of them counted, if they exceed the limit.
        """
        storages = {id(storage): storage for storage in (t.untyped_storage() for t in tensors)}
        new = [storage for key, storage in storages.items() if not self._holds(key)]
        self.require(kind, sum(storage.nbytes() for storage in new))
        self._entries |= {id(storage): (kind, weakref.ref(storage)) for storage in new}
        self._raise_peaks()

    def kind_of(self, tensor: Tensor) -> MemoryKind | None:
        """Return the kind of the tensor's storage; None where it is not tracked."""
        key = id(tensor.untyped_storage())
        return self._entries[key][0] if self._holds(key) else None

    def require(self, kind: MemoryKind, num_bytes: int) -> None:
        """Raise DeviceMemoryError if `num_bytes` more do not fit; called before an allocation."""
        if (
            self.limit_bytes is None
            or (total := self.total_bytes()) + num_bytes <= self.limit_bytes
        ):
            return
        raise self.refusal(
            f"{kind} need {num_bytes} bytes, but {total} of {self.limit_bytes} bytes are in use"
        )

    def refusal(self, reason: str, *, untracked_bytes: int = 0) -> DeviceMemoryError:
        """Return the error for an allocation that did not fit, with a table of the bytes in use, largest
        first.

        untracked_bytes: of tensors that the ledger does not track.
        """
        sizes: dict[str, int] = {str(kind): size for kind, size in self._kinds().items()}
        sizes["not tracked, such as activations"] = untracked_bytes
        rows = sorted(((size, name) for name, size in sizes.items() if size), reverse=True)
        width = max((len(name) for _, name in rows), default=0)
        table = [f"  {name:<{width}}  {size:>15,} bytes" for size, name in rows]
        lines = [f"device {self.device}: {reason}; {REMEDY}", "held:", *(table or ["  nothing"])]
        return DeviceMemoryError("\n".join(lines))

    def total_bytes(self) -> int:
        """Return the bytes in use now."""
        return sum(self._kinds().values())

    def kind_bytes(self, kind: MemoryKind) -> int:
        """Return the bytes in use now for one kind."""
        return self._kinds().get(kind, 0)

    def report(self) -> MemoryReport:
        """Return the bytes in use now and the peaks so far."""
        self._raise_peaks()
        kinds = self._kinds()
        return MemoryReport(
            device=self.device,
            limit_bytes=self.limit_bytes,
            total_bytes=sum(kinds.values()),
            total_peak_bytes=self._total_peak,
            kind_bytes={str(kind): size for kind, size in kinds.items()},
            kind_peak_bytes={str(kind): size for kind, size in self._peaks.items()},
        )

    def reset_peaks(self) -> None:
        """Start a new period of peaks at the bytes in use now."""
        self._peaks, self._total_peak = {}, 0
        self._raise_peaks()

    def _holds(self, key: int) -> bool:
        """Return whether a storage with this id is alive.

        The Python object of a storage lives exactly as long as the storage, so that its id and a weak
        reference to it identify the memory.
        """
        entry = self._entries.get(key)
        return entry is not None and entry[1]() is not None

    def _kinds(self) -> dict[MemoryKind, int]:
        """Return the bytes in use by kind, and drop the entries of freed storages."""
        sizes: dict[MemoryKind, int] = {}
        for key, entry in list(self._entries.items()):
            kind, reference = entry
            if (storage := reference()) is not None:
                sizes[kind] = sizes.get(kind, 0) + storage.nbytes()
            elif self._entries.get(key) is entry:
                del self._entries[key]
        return sizes

    def _raise_peaks(self) -> None:
        kinds = self._kinds()
        for kind, size in kinds.items():
            self._peaks[kind] = max(self._peaks.get(kind, 0), size)
        total = sum(kinds.values())
        self._total_peak = max(self._total_peak, total)
        for watch in self._watches:
            watch.observe(kinds)
