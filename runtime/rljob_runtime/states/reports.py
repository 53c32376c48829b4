"""What a device's states report to the driver. Without torch, which the driver need not load."""

from collections import Counter
from dataclasses import dataclass

from rljob_runtime.pool_rows import Lineage
from rljob_runtime.spans import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateReport:
    """Sums over one worker's share of a batch.

    response_tokens: that were made; sample_tokens: of the samples' responses, which a partial rollout
    has made in several steps. going_on: groups that were put into the next step's pool.
    """

    samples: int
    prompt_tokens: int
    response_tokens: int
    sample_tokens: int
    clipped: int
    going_on: int = 0
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """metrics: over the global batch, the mean of the step's optimizer steps. rows_by_age: this rank's
    rows by the number of weight versions that their first tokens were behind. lineage: of a partial
    rollout."""

    metrics: dict[str, float]
    rows_by_age: Counter[int]
    lineage: Lineage | None = None
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """checksum: of the weights that this device holds, the same on all devices of a job; empty where
    the engine was probed instead."""

    checksum: str
    span: Span
