"""The rows of a step whose metrics are not finite, as plain values, most suspicious first.

The update state calls this; the guard `nonFinite` writes the rows of all ranks to the run's folder. Rows per
rank, and tokens per row, are limited.
"""

# B samples, T response tokens of all samples together

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from rljob_runtime.algorithms import LossOutput, Totals
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.accumulation import UNDIVIDED

MOST_ROWS = 64
"""Maximum rows of a rank."""
MOST_TOKENS = 1024
"""Maximum tokens of a prompt, and of a response."""

ComputeLogprobs = Callable[[SampleBatch], Tensor]
Loss = Callable[[Tensor, SampleBatch, Totals], LossOutput]
BadRow = dict[str, Any]


def all_finite(metrics: Mapping[str, float]) -> bool:
    """Return whether every metric is finite."""
    return all(map(math.isfinite, metrics.values()))


def bad_rows(
    chunks: Sequence[tuple[Sequence[RowMeta], SampleBatch]],
    *,
    logprobs_of: ComputeLogprobs | None,
    column: str,
    loss: Loss | None,
) -> list[BadRow]:
    """Return rows of a batch in JSON format: those with the most non-finite values first, then in their
    order.

    chunks: prepared samples with their rows. logprobs_of: computes the model's values for them with the
    current weights, [T], reported as `column`; None if a rank cannot compute alone. loss: of one sample; None
    if samples have no separate loss.
    """
    entries = [
        row for rows, samples in chunks for row in _rows(rows, samples, logprobs_of, column, loss)
    ]
    entries.sort(key=lambda row: -len(row["not_finite"]))
    return entries[:MOST_ROWS]


def _rows(
    rows: Sequence[RowMeta],
    samples: SampleBatch,
    logprobs_of: ComputeLogprobs | None,
    column: str,
    loss: Loss | None,
) -> Iterator[BadRow]:
    values = (
        samples.split_by_sample(logprobs_of(samples).cpu()) if logprobs_of is not None else None
    )
    for i, row in enumerate(rows):
        scalars = {name: float(values_B[i]) for name, values_B in samples.scalars.items()}
        fields = {name: field[i].float() for name, field in samples.fields.items()}
        if values is not None:
            fields[column] = values[i]
            if loss is not None:
                scalars["loss"] = float(loss(values[i], samples.select([i]), UNDIVIDED).loss)
        prompt = samples.prompts[int(samples.group_of_B[i])]
        bad_fields = [name for name, value_T in fields.items() if not value_T.isfinite().all()]
        bad_scalars = [name for name, value in scalars.items() if not math.isfinite(value)]
        yield {
            "uid": row.uid,
            "group": row.group,
            "version": row.version,
            "not_finite": sorted(bad_fields + bad_scalars),
            "prompt_tokens": len(prompt),
            "response_tokens": len(samples.responses[i]),
            **{name: _plain(value) for name, value in scalars.items()},
            "of_tokens": {name: _summary(value_T) for name, value_T in fields.items()},
            "prompt": prompt[:MOST_TOKENS].tolist(),
            "response": samples.responses[i][:MOST_TOKENS].tolist(),
        }


def _summary(value_T: Tensor) -> dict[str, float | int | None]:
    """Summarize per-token values: minimum, mean and maximum of the finite ones, and index and count of the
    others."""
    finite_T = value_T.isfinite()
    finite = value_T[finite_T].double()
    bad = (~finite_T).nonzero().flatten().tolist()
    return {
        "min": float(finite.min()) if len(finite) else None,
        "mean": float(finite.mean()) if len(finite) else None,
        "max": float(finite.max()) if len(finite) else None,
        "not_finite": len(bad),
        "first_not_finite": bad[0] if bad else None,
    }


def _plain(value: float) -> float | str:
    """Return a value that JSON can represent: it has only finite numbers."""
    return value if math.isfinite(value) else str(value)
