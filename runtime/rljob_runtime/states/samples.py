"""Dock columns as a `SampleBatch`: what the reference and update states compute on."""

from collections.abc import Sequence

import torch

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.sample import SampleBatch


def read_samples(
    dock: DockClient, rows: Sequence[RowMeta], *, fields: Sequence[str], scalars: Sequence[str] = ()
) -> SampleBatch:
    """The rows as tensors, in the rows' order; prompts once a group.

    fields: per-token columns to read; scalars: columns of one value a row.
    """
    columns = dock.read(rows, ["prompt", "response", *fields, *scalars])
    places: dict[str, int] = {}
    prompts: list[torch.Tensor] = []
    for i, row in enumerate(rows):
        if row.group not in places:
            places[row.group] = len(prompts)
            prompts.append(torch.tensor(columns["prompt"].row(i).tolist(), dtype=torch.int64))
    return SampleBatch(
        prompts=prompts,
        group_of_B=torch.tensor([places[row.group] for row in rows], dtype=torch.int64),
        responses=[
            torch.tensor(columns["response"].row(i).tolist(), dtype=torch.int64)
            for i in range(len(rows))
        ],
        fields={
            name: [torch.from_numpy(columns[name].row(i).copy()) for i in range(len(rows))]
            for name in fields
        },
        scalars={
            name: torch.tensor(
                [float(columns[name].row(i)[0]) for i in range(len(rows))], dtype=torch.float32
            )
            for name in scalars
        },
    )
