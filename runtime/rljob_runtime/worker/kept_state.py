"""What is trained on a device, as it outlives the groups that it was trained in.

Called by the device worker when a device of its world has died: those that live keep their state on the host
while all make their groups and engines anew, take it up again, and give it to the ones that came. A second
copy, which somebody keeps after each step, is the same.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.host_swap import bit_sum
from rljob_runtime.errors import WeightsError
from rljob_runtime.worker.kept_room import Outline, Room

HOST = torch.device("cpu")
PACK_BYTES = 4 * 2**20
"""Tensors of less travel together, so many bytes or a little more in a message."""


Parts = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class KeptState:
    """Tensors on the host after a step of the run, by part and by name. Parts are each model's weights and
    its optimizer's state: `policy/weights`, `critic/state`. sums: of a part's bits, when it was kept."""

    step: int
    parts: Parts
    sums: Mapping[str, int]

    @classmethod
    def of(cls, step: int, live: Parts) -> "KeptState":
        """A copy of live tensors, in memory of its own."""
        return cls.summed(step, copied(live, Room()))

    @classmethod
    def summed(cls, step: int, parts: Parts) -> "KeptState":
        """What lies on the host already."""
        return cls(step, parts, {part: _sum(tensors.values()) for part, tensors in parts.items()})

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(own.nbytes for tensors in self.parts.values() for own in tensors.values())

    def only(self, parts: Iterable[str]) -> "KeptState":
        """Some of the parts, of the same memory."""
        kept = {part: self.parts[part] for part in parts}
        return KeptState(self.step, kept, {part: self.sums[part] for part in kept})

    def with_parts(self, other: "KeptState") -> "KeptState":
        """Another's parts, too, of the same step."""
        assert other.step == self.step, f"states after steps {self.step} and {other.step}"
        return KeptState(self.step, {**self.parts, **other.parts}, {**self.sums, **other.sums})

    def check(self) -> None:
        """Raise WeightsError where a bit is not as it was kept."""
        wrong = [
            part for part, held in self.parts.items() if _sum(held.values()) != self.sums[part]
        ]
        if wrong:
            raise WeightsError(
                f"bits of {', '.join(wrong)} after step {self.step} changed on a host, or on their way; the "
                "run stops, resume from the last checkpoint"
            )

    def send(
        self, rank: int, *, device: torch.device = HOST, group: ProcessGroup | None = None
    ) -> None:
        """To another rank of the world, which receives."""
        told = {"step": self.step, "outline": outline_of(self.parts), "sums": dict(self.sums)}
        head = torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)
        dist.send(torch.tensor([len(head)]).to(device), rank, group)
        dist.send(head.to(device), rank, group)
        for pack in _packs(self.parts):
            dist.send((pack[0] if len(pack) == 1 else torch.cat(pack)).to(device), rank, group)

    @classmethod
    def receive(
        cls,
        rank: int,
        *,
        device: torch.device = HOST,
        group: ProcessGroup | None = None,
        room: Room | None = None,
        begins: Callable[[], None] = lambda: None,
    ) -> "KeptState":
        """From another rank of the world, which sends. room: takes it in; default: memory of its own. begins:
        called once the first word is there, behind which nobody waits for what was not sent."""
        size = torch.zeros(1, dtype=torch.int64, device=device)
        dist.recv(size, rank, group)
        head = torch.zeros(int(size), dtype=torch.uint8, device=device)
        dist.recv(head, rank, group)
        begins()
        told = json.loads(head.cpu().numpy().tobytes())
        parts = (room or Room()).of(told["outline"])
        for pack in _packs(parts):
            if len(pack) == 1 and device == HOST:
                dist.recv(pack[0], rank, group)
                continue
            sizes = [len(held) for held in pack]
            arriving = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
            dist.recv(arriving, rank, group)
            for held, piece in zip(pack, torch.split(arriving, sizes), strict=True):
                held.copy_(piece)
        return cls(told["step"], parts, told["sums"])


def copied(live: Parts, room: Room) -> Parts:
    """Live tensors on the host, in a room: they may change once this returns."""
    parts = room.of(outline_of(live))
    for part, tensors in live.items():
        for name, own in tensors.items():
            parts[part][name].copy_(own)
    return parts


def outline_of(parts: Parts) -> Outline:
    """As JSON keeps it."""
    return {
        part: {name: [list(own.shape), str(own.dtype)] for name, own in tensors.items()}
        for part, tensors in parts.items()
    }


def _packs(parts: Parts) -> Iterator[list[Tensor]]:
    """Bytes that travel together, the same on both ends: a message each would take longer than what is in it,
    since the thread that sends shares the interpreter with one that generates."""
    pack: list[Tensor] = []
    for tensors in parts.values():
        for tensor in tensors.values():
            if tensor.nbytes >= PACK_BYTES:
                yield [_bytes(tensor)]
            elif tensor.numel():
                pack.append(_bytes(tensor))
            if sum(map(len, pack)) >= PACK_BYTES:
                yield pack
                pack = []
    if pack:
        yield pack


def _sum(tensors: Iterable[Tensor]) -> int:
    return sum(int(bit_sum(_bytes(tensor))) for tensor in tensors) % 2**63


def _bytes(tensor: Tensor) -> Tensor:
    """[shape] → [bytes]."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
