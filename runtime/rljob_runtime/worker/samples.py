"""Dock columns as a `SampleBatch`, the input of the reference and update states."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.samples.flow import RESPONSE_MASK, ROUTES
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.samples.tensors import rows_of, tensor_of

if TYPE_CHECKING:
    from rljob_runtime.task.pictures.picture_columns import PictureReader


def read_samples(
    dock: DockClient,
    rows: Sequence[RowMeta],
    *,
    fields: Sequence[str],
    scalars: Sequence[str] = (),
    masked: bool = False,
    routed: bool = False,
    pictures: "PictureReader | None" = None,
) -> SampleBatch:
    """Return the rows as tensors, in the rows' order, with each group's prompt once.

    fields: per-token columns to read; scalars: columns of one value per row. masked: whether a column marks
    which response tokens were drawn; per-token columns then cover these alone. routed: whether a column has
    the experts of all tokens. pictures: reads those of prompts that have any.
    """
    mask = [RESPONSE_MASK] if masked else []
    routes = [ROUTES] if routed else []
    columns = dock.read(rows, ["prompt", "response", *mask, *routes, *fields, *scalars])
    groups = [row.group for row in rows]
    prompts = dict(zip(groups, rows_of(columns["prompt"]), strict=True))
    index_of_group = {group: index for index, group in enumerate(prompts)}
    texts = rows_of(columns["response"], torch.int64)
    drawn = rows_of(columns[RESPONSE_MASK], torch.bool) if masked else []
    pictures_of_group = pictures.read(dock, rows) if pictures is not None else {}
    responses = (
        [text[is_drawn] for text, is_drawn in zip(texts, drawn, strict=True)] if masked else texts
    )
    return SampleBatch(
        prompts=[prompt.long() for prompt in prompts.values()],
        group_of_B=torch.tensor([index_of_group[group] for group in groups], dtype=torch.int64),
        responses=responses,
        full_responses=texts if masked else [],
        drawn=drawn,
        routes=rows_of(columns[ROUTES]) if routed else [],
        fields={name: rows_of(columns[name]) for name in fields},
        scalars={name: tensor_of(columns[name].values).float() for name in scalars},
        pictures=[pictures_of_group[group] for group in prompts]
        if any(pictures_of_group.values())
        else [],
    )
