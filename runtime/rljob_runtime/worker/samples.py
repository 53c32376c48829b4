"""Dock columns as a `SampleBatch`: what the reference and update states compute on."""

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
    """The rows as tensors, in the rows' order; prompts once a group.

    fields: per-token columns to read; scalars: columns of one value a row. masked: whether a column says
    which tokens of the response were drawn; per-token columns are of these alone. routed: whether one has the
    experts of all tokens. pictures: of prompts that show any.
    """
    mask = [RESPONSE_MASK] if masked else []
    routes = [ROUTES] if routed else []
    columns = dock.read(rows, ["prompt", "response", *mask, *routes, *fields, *scalars])
    groups = [row.group for row in rows]
    prompts = dict(zip(groups, rows_of(columns["prompt"]), strict=True))
    places = {group: place for place, group in enumerate(prompts)}
    texts = rows_of(columns["response"], torch.int64)
    drawn = rows_of(columns[RESPONSE_MASK], torch.bool) if masked else []
    shown = pictures.read(dock, rows) if pictures is not None else {}
    responses = [text[kept] for text, kept in zip(texts, drawn, strict=True)] if masked else texts
    return SampleBatch(
        prompts=[prompt.long() for prompt in prompts.values()],
        group_of_B=torch.tensor([places[group] for group in groups], dtype=torch.int64),
        responses=responses,
        full_responses=texts if masked else [],
        drawn=drawn,
        routes=rows_of(columns[ROUTES]) if routed else [],
        fields={name: rows_of(columns[name]) for name in fields},
        scalars={name: tensor_of(columns[name].values).float() for name in scalars},
        pictures=[shown[group] for group in prompts] if any(shown.values()) else [],
    )
