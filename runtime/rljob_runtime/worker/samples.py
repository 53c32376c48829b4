"""Dock columns as a `SampleBatch`: what the reference and update states compute on."""

from collections.abc import Sequence

import torch

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.samples.flow import RESPONSE_MASK
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.samples.tensors import rows_of, tensor_of


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
    groups = [row.group for row in rows]
    prompts = dict(zip(groups, rows_of(columns["prompt"]), strict=True))
    places = {group: place for place, group in enumerate(prompts)}
    texts = rows_of(columns["response"], torch.int64)
    drawn = rows_of(columns[RESPONSE_MASK], torch.bool) if masked else []
    responses = [text[kept] for text, kept in zip(texts, drawn, strict=True)] if masked else texts
    return SampleBatch(
        prompts=[prompt.long() for prompt in prompts.values()],
        group_of_B=torch.tensor([places[group] for group in groups], dtype=torch.int64),
        responses=responses,
        whole=texts if masked else [],
        drawn=drawn,
        fields={name: rows_of(columns[name]) for name in fields},
        scalars={name: tensor_of(columns[name].values).float() for name in scalars},
    )
