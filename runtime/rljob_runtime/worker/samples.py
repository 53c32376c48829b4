"""Dock columns as a `SampleBatch`: what the reference and update states compute on."""

from collections.abc import Sequence

import torch

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.samples.flow import RESPONSE_MASK
from rljob_runtime.samples.sample import SampleBatch


def read_samples(
    dock: DockClient,
    rows: Sequence[RowMeta],
    *,
    fields: Sequence[str],
    scalars: Sequence[str] = (),
    masked: bool = False,
) -> SampleBatch:
    """The rows as tensors, in the rows' order; prompts once a group.

    fields: per-token columns to read; scalars: columns of one value a row. masked: whether a column says
    which tokens of the response were drawn; per-token columns are of these alone.
    """
    mask = [RESPONSE_MASK] if masked else []
    columns = dock.read(rows, ["prompt", "response", *mask, *fields, *scalars])
    places: dict[str, int] = {}
    prompts: list[torch.Tensor] = []
    for i, row in enumerate(rows):
        if row.group not in places:
            places[row.group] = len(prompts)
            prompts.append(torch.tensor(columns["prompt"].row(i).tolist(), dtype=torch.int64))
    texts = [
        torch.tensor(columns["response"].row(i).tolist(), dtype=torch.int64)
        for i in range(len(rows))
    ]
    drawn = (
        [torch.tensor(row.tolist(), dtype=torch.bool) for row in columns[RESPONSE_MASK].rows()]
        if masked
        else []
    )
    responses = [text[kept] for text, kept in zip(texts, drawn, strict=True)] if masked else texts
    return SampleBatch(
        prompts=prompts,
        group_of_B=torch.tensor([places[row.group] for row in rows], dtype=torch.int64),
        responses=responses,
        whole=texts if masked else [],
        drawn=drawn,
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
