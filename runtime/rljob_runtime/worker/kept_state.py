"""A device's trained state on the host, which outlives the groups that it was trained in.

The device worker calls this when a device of its world has died. The live devices keep their state on the
host while all recreate their groups and engines, restore it, and send it to the new devices. A second copy,
which a rank keeps after each step, has the same format.
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
from rljob_runtime.worker.kept_room import HostRoom, Outline

HOST = torch.device("cpu")
PACK_BYTES = 4 * 2**20
"""Smaller tensors are sent together, in messages of about this many bytes."""


StateParts = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class KeptState:
    """Tensors on the host after a step of the run, by part and by name.

    Parts are each model's weights and its optimizer's state: `policy/weights`, `critic/state`. sums: of a
    part's bits, at the time of the copy.
    """

    step: int
    parts: StateParts
    sums: Mapping[str, int]

    @classmethod
    def of(cls, step: int, live: StateParts) -> "KeptState":
        """Copy live tensors into new memory."""
        return cls.summed(step, copy_to_host(live, HostRoom()))

    @classmethod
    def summed(cls, step: int, parts: StateParts) -> "KeptState":
        """Wrap tensors that are on the host already, and compute their checksums."""
        return cls(
            step, parts, {part_name: _sum(tensors.values()) for part_name, tensors in parts.items()}
        )

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensors in self.parts.values() for tensor in tensors.values())

    def only(self, parts: Iterable[str]) -> "KeptState":
        """Return some of the parts, sharing memory."""
        selected = {part_name: self.parts[part_name] for part_name in parts}
        return KeptState(
            self.step, selected, {part_name: self.sums[part_name] for part_name in selected}
        )

    def with_parts(self, other: "KeptState") -> "KeptState":
        """Return this state with another's parts added, of the same step."""
        assert other.step == self.step, f"states after steps {self.step} and {other.step}"
        return KeptState(self.step, {**self.parts, **other.parts}, {**self.sums, **other.sums})

    def check(self) -> None:
        """Raise WeightsError if a bit has changed since the copy."""
        wrong = [
            part_name
            for part_name, tensors in self.parts.items()
            if _sum(tensors.values()) != self.sums[part_name]
        ]
        if wrong:
            raise WeightsError(
                f"bits of {', '.join(wrong)} after step {self.step} changed on a host, or on their way; the "
                "run stops, resume from the last checkpoint"
            )

    def send(
        self, rank: int, *, device: torch.device = HOST, group: ProcessGroup | None = None
    ) -> None:
        """Send the state to another rank of the world, which calls `receive`."""
        header = {"step": self.step, "outline": outline_of(self.parts), "sums": dict(self.sums)}
        head = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
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
        room: HostRoom | None = None,
        begins: Callable[[], None] = lambda: None,
    ) -> "KeptState":
        """Receive a state from another rank of the world, which calls `send`.

        room: memory for it; default: new memory. begins: called when the first message has arrived; all later
        ones have been sent by then.
        """
        size = torch.zeros(1, dtype=torch.int64, device=device)
        dist.recv(size, rank, group)
        head = torch.zeros(int(size), dtype=torch.uint8, device=device)
        dist.recv(head, rank, group)
        begins()
        header = json.loads(head.cpu().numpy().tobytes())
        parts = (room or HostRoom()).of(header["outline"])
        for pack in _packs(parts):
            if len(pack) == 1 and device == HOST:
                dist.recv(pack[0], rank, group)
                continue
            sizes = [len(tensor) for tensor in pack]
            arriving = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
            dist.recv(arriving, rank, group)
            for tensor, received in zip(pack, torch.split(arriving, sizes), strict=True):
                tensor.copy_(received)
        return cls(header["step"], parts, header["sums"])


def copy_to_host(live: StateParts, room: HostRoom) -> StateParts:
    """Copy live tensors to the host, into a room: they may change once this returns."""
    parts = room.of(outline_of(live))
    for part_name, tensors in live.items():
        for name, tensor in tensors.items():
            parts[part_name][name].copy_(tensor)
    return parts


def outline_of(parts: StateParts) -> Outline:
    """Return the shapes and dtypes of tensors in JSON format."""
    return {
        part_name: {
            name: [list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors.items()
        }
        for part_name, tensors in parts.items()
    }


def _packs(parts: StateParts) -> Iterator[list[Tensor]]:
    """Yield bytes that are sent together, the same on both ends.

    Separate messages would take longer than their contents, since the sending thread shares the interpreter
    with one that generates.
    """
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
    """Return the tensor's bytes, [shape] → [bytes]."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
