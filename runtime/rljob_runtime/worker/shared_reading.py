"""Samples for ranks that train on the same ones: the replica's first rank reads and broadcasts them.

The reference and update states call this. An error on one rank fails all that wait for each other in a pass,
before any of them begins it: a rank that computed alone would wait until the group's deadline.
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
from rljob_runtime.worker.agree import fail_together

Claims = Callable[[], Iterator[list[RowMeta]]]
Read = Callable[[list[RowMeta]], SampleBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleChunk:
    """Samples of one pass. rows: empty on ranks that do not lead."""

    rows: list[RowMeta]
    samples: SampleBatch


def read_together(
    ranks: UpdateRanks, claims: Claims, read: Read, *, num_chunks: int
) -> Iterator[SampleChunk]:
    """Yield the replica's samples on all of its ranks. num_chunks: that the claims yield, on every replica.

    Raises DockError on every rank of `ranks.pass_group` if one of them cannot read.
    """
    claimed = claims() if ranks.leads else iter(())
    for _ in range(num_chunks):
        rows: list[RowMeta] = []
        samples: SampleBatch | None = None
        with fail_together(ranks.pass_group):
            if ranks.leads:
                rows = next(claimed)
                samples = read(rows)
        if ranks.replica is not None:
            samples = unpack(broadcast_bytes(pack(samples) if samples else b"", ranks.replica))
        assert samples is not None, "who reads alone leads"
        yield SampleChunk(rows=rows, samples=samples)


def pack(samples: SampleBatch) -> bytes:
    """Serialize tensors end to end with their lengths, in torch's format."""
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
    """Return the samples that were passed to `pack`."""
    content_by_name = torch.load(io.BytesIO(content), weights_only=True)
    return SampleBatch(
        group_of_B=content_by_name["group_of_B"],
        prompts=_apart(*content_by_name["prompts"]),
        responses=_apart(*content_by_name["responses"]),
        fields={name: _apart(*rows) for name, rows in content_by_name["fields"].items()},
        scalars=content_by_name["scalars"],
        full_responses=_apart(*content_by_name["whole"]) if "whole" in content_by_name else [],
        drawn=_apart(*content_by_name["drawn"]) if "drawn" in content_by_name else [],
        routes=_apart(*content_by_name["routes"]) if "routes" in content_by_name else [],
        pictures=[
            [Picture(patches_PX=p, grid=g, name=n) for p, g, n in shown]
            for shown in content_by_name["pictures"]
        ],
    )


def _joined(rows: list[Tensor]) -> tuple[Tensor, list[int]]:
    return torch.cat(rows), [len(row) for row in rows]


def _apart(values: Tensor, lengths: list[int]) -> list[Tensor]:
    return list(torch.split(values, lengths))
