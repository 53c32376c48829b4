"""What a step whose numbers are not finite was made of: its rows as plain values, those to blame first.

Called by the update state; the guard `nonFinite` writes the rows of all ranks into the run's folder. Bounded:
so many rows of a rank, and so many tokens of each.
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
"""Of a rank."""
MOST_TOKENS = 1024
"""Of a prompt, and of a response."""

Says = Callable[[SampleBatch], Tensor]
Loss = Callable[[Tensor, SampleBatch, Totals], LossOutput]
BadRow = dict[str, Any]


def all_finite(metrics: Mapping[str, float]) -> bool:
    """Whether every metric is a number and not infinite."""
    return all(map(math.isfinite, metrics.values()))


def bad_rows(
    parts: Sequence[tuple[Sequence[RowMeta], SampleBatch]],
    *,
    says: Says | None,
    column: str,
    loss: Loss | None,
) -> list[BadRow]:
    """Rows of a batch as JSON has them, those with most that is not finite first, then in their order.

    parts: samples that were prepared, with their rows. says: what the model says of them with the weights
    that there are, [T], told as `column`; None where a rank cannot compute alone. loss: of one sample; None
    where it has none of its own.
    """
    found = [row for rows, samples in parts for row in _rows(rows, samples, says, column, loss)]
    found.sort(key=lambda row: -len(row["not_finite"]))
    return found[:MOST_ROWS]


def _rows(
    rows: Sequence[RowMeta],
    samples: SampleBatch,
    says: Says | None,
    column: str,
    loss: Loss | None,
) -> Iterator[BadRow]:
    said = samples.split_by_sample(says(samples).cpu()) if says is not None else None
    for i, row in enumerate(rows):
        scalars = {name: float(values_B[i]) for name, values_B in samples.scalars.items()}
        fields = {name: held[i].float() for name, held in samples.fields.items()}
        if said is not None:
            fields[column] = said[i]
            if loss is not None:
                scalars["loss"] = float(loss(said[i], samples.select([i]), UNDIVIDED).loss)
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
    """Of a value of each token: least, mean and largest of those that are finite, the place of the first that
    is not, and how many are not."""
    finite_T = value_T.isfinite()
    kept = value_T[finite_T].double()
    bad = (~finite_T).nonzero().flatten().tolist()
    return {
        "min": float(kept.min()) if len(kept) else None,
        "mean": float(kept.mean()) if len(kept) else None,
        "max": float(kept.max()) if len(kept) else None,
        "not_finite": len(bad),
        "first_not_finite": bad[0] if bad else None,
    }


def _plain(value: float) -> float | str:
    """JSON has no other numbers than finite ones."""
    return value if math.isfinite(value) else str(value)
