"""Rows of the dock as the samples that states compute on, whichever way their bytes came."""

from typing import Any

import numpy as np
import pytest
import torch
from forked_docks import ForkedDock

from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.graph import State
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.samples.flow import RESPONSE_MASK, ROUTES
from rljob_runtime.worker.samples import read_samples

COLUMNS = ("response", RESPONSE_MASK, "values", ROUTES, "reward")
STATES = [
    State(name="generate", needs=("prompt",), writes=COLUMNS),
    State(name="update", needs=("prompt", *COLUMNS)),
]
GROUPS, SAMPLES, LONG = 3, 2, 9_000
PROMPTS = [np.arange(g + 1, dtype=np.int32) for g in range(GROUPS)]


@pytest.mark.parametrize("warehouses", [1, 2])
@pytest.mark.parametrize("shared_memory", ["required", "none"])
def test_samples_are_what_was_written(shared_memory: str, warehouses: int) -> None:
    random = np.random.default_rng(0)
    lengths = [LONG, 0, 3, 2, LONG, 1]  # above and below what an answer carries by itself
    tokens = [random.integers(0, 150_000, length, dtype=np.int32) for length in lengths]
    drawn = [random.integers(0, 2, length, dtype=np.uint8) for length in lengths]
    values = [random.standard_normal(int(d.sum()), dtype=np.float32) for d in drawn]
    rewards = [np.asarray([i], dtype=np.float32) for i in range(len(lengths))]
    routes = [random.integers(0, 256, 6 * (n + 1), dtype=np.uint8) for n in lengths]
    content = (tokens, drawn, values, routes, rewards)
    written: dict[str, Any] = dict(zip(COLUMNS, content, strict=True))

    with ForkedDock(STATES, warehouses=warehouses, shared_memory=shared_memory) as dock:
        dock.client("feed", "feeder").put_rows("b", _new_rows(), total=GROUPS * SAMPLES)
        generate, update = (dock.client(name, name) for name in ("generate", "update"))
        claim = generate.claim("b", share=(0, 1), timeout_seconds=20)
        generate.write(claim.rows, {n: Ragged.from_rows(rows) for n, rows in written.items()})
        rows = update.claim("b", share=(0, 1), timeout_seconds=20).rows
        order = [3, 1, 4, 0, 5]  # the middle group's first sample is left out
        found = read_samples(
            update,
            [rows[i] for i in order],
            fields=["values"],
            scalars=["reward"],
            masked=True,
            routed=True,
        )
        update.acknowledge(rows)

    kept = [torch.tensor(drawn[i], dtype=torch.bool) for i in order]
    whole = [torch.tensor(tokens[i], dtype=torch.int64) for i in order]
    assert _same(found.prompts, [torch.tensor(PROMPTS[g]).long() for g in (1, 0, 2)])
    assert torch.equal(found.group_of_B, torch.tensor([0, 1, 2, 1, 2]))
    assert _same(found.full_responses, whole)
    assert _same(found.drawn, kept)
    assert _same(found.responses, [text[mask] for text, mask in zip(whole, kept, strict=True)])
    assert _same(found.routes, [torch.tensor(routes[i]) for i in order])
    assert _same(found.fields["values"], [torch.tensor(values[i]) for i in order])
    assert torch.equal(found.scalars["reward"], torch.tensor(order, dtype=torch.float32))


def _new_rows() -> list[NewRow]:
    return [
        NewRow(
            uid=f"b/{g}/{s}",
            group=f"b/{g}",
            group_index=g,
            group_columns={"prompt": PROMPTS[g]},
        )
        for g in range(GROUPS)
        for s in range(SAMPLES)
    ]


def _same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
