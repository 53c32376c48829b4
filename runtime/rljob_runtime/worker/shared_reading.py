"""Samples for ranks that train on the same ones: the replica's first rank reads, and hands them on.

Called by the reference and update states. What fails on one rank fails on all that wait for each other in
a pass, before any of them begins it: one that computes alone would wait until the group's deadline.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.devices.collectives import broadcast_bytes
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.samples.pictures import Picture
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.worker.agree import agreed

Claims = Callable[[], Iterator[list[RowMeta]]]
Read = Callable[[list[RowMeta]], SampleBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is computed at once. rows: none on ranks that do not lead."""

    rows: list[RowMeta]
    samples: SampleBatch


def read_together(ranks: UpdateRanks, claims: Claims, read: Read, *, parts: int) -> Iterator[Part]:
    """The replica's samples, on all of its ranks. parts: how many the claims have, on every replica.

    Raises DockError on every rank of `ranks.together` when one of them cannot read.
    """
    claimed = claims() if ranks.leads else iter(())
    for _ in range(parts):
        rows: list[RowMeta] = []
        samples: SampleBatch | None = None
        with agreed(ranks.together):
            if ranks.leads:
                rows = next(claimed)
                samples = read(rows)
        if ranks.replica is not None:
            samples = unpack(broadcast_bytes(pack(samples) if samples else b"", ranks.replica))
        assert samples is not None, "who reads alone leads"
        yield Part(rows=rows, samples=samples)


def pack(samples: SampleBatch) -> bytes:
    """Tensors end to end with their lengths, as torch writes them."""
    content = {
        "group_of_B": samples.group_of_B,
        "prompts": _joined(samples.prompts),
        "responses": _joined(samples.responses),
        **{
            name: _joined(rows)
            for name, rows in (
                ("whole", samples.full_responses),
                ("drawn", samples.drawn),
                ("routes", samples.routes),
            )
            if rows
        },
        "pictures": [[(p.patches_PX, p.grid, p.name) for p in shown] for shown in samples.pictures],
        "fields": {name: _joined(rows) for name, rows in samples.fields.items()},
        "scalars": samples.scalars,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> SampleBatch:
    """What `pack` took."""
    held = torch.load(io.BytesIO(content), weights_only=True)
    return SampleBatch(
        group_of_B=held["group_of_B"],
        prompts=_apart(*held["prompts"]),
        responses=_apart(*held["responses"]),
        fields={name: _apart(*rows) for name, rows in held["fields"].items()},
        scalars=held["scalars"],
        full_responses=_apart(*held["whole"]) if "whole" in held else [],
        drawn=_apart(*held["drawn"]) if "drawn" in held else [],
        routes=_apart(*held["routes"]) if "routes" in held else [],
        pictures=[
            [Picture(patches_PX=p, grid=g, name=n) for p, g, n in shown]
            for shown in held["pictures"]
        ],
    )


def _joined(rows: list[Tensor]) -> tuple[Tensor, list[int]]:
    return torch.cat(rows), [len(row) for row in rows]


def _apart(values: Tensor, lengths: list[int]) -> list[Tensor]:
    return list(torch.split(values, lengths))
