"""What a device's states report to the driver. Without torch, which the driver need not load."""

from dataclasses import dataclass

from rljob_runtime.spans import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateReport:
    """Sums over one worker's share of a batch."""

    samples: int
    prompt_tokens: int
    response_tokens: int
    clipped: int
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """metrics: over the global batch, the mean of the step's optimizer steps."""

    metrics: dict[str, float]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """checksum: of the weights that this device holds, the same on all devices of a job; empty where
    the engine was probed instead."""

    checksum: str
    span: Span
