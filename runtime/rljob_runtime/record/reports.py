"""What a device's states report to the driver. Without torch, which the driver need not load."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.prompts.passed_rows import Passed
from rljob_runtime.prompts.pool_rows import Lineage
from rljob_runtime.record.digests import RankDigest
from rljob_runtime.record.event_types import PassTimes
from rljob_runtime.record.spans import OwnWork, Span


@dataclass(slots=True, kw_only=True)
class ToolFigures:
    """What the samples of a share asked of tools. tokens: of answers. turns: of the policy. cut: samples that
    ended with a call in their last turn. calls, errors, timeouts, seconds: by tool; seconds from a call to
    its answer. idle_seconds: in which the device had nothing to do but to wait."""

    tokens: int = 0
    turns: int = 0
    cut: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    timeouts: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    idle_seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class GameFigures:
    """What the samples of a share played. tokens: of observations. moves: turns that the game answered.
    seconds: of these, from a move to what followed. cut: samples that ended with their last turn and not with
    their game; done: that ended with it; errors: whose game failed. idle_seconds: in which the device had
    nothing to do but to wait."""

    tokens: int = 0
    turns: int = 0
    moves: int = 0
    seconds: float = 0.0
    cut: int = 0
    done: int = 0
    errors: int = 0
    idle_seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class AgentFigures:
    """What agents did with the samples of a share. tokens: of their messages. turns: answers that are trained
    on; requests: all that they asked for; left_out: tokens of the others. seconds: of sessions. cut: samples
    that ran into a limit; errors: whose agent failed. idle_seconds: in which the device had nothing to do but
    to wait."""

    tokens: int = 0
    turns: int = 0
    requests: int = 0
    left_out: int = 0
    seconds: float = 0.0
    cut: int = 0
    errors: int = 0
    idle_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFigures:
    """Of the prompts of a share. pictures: each prompt's counted once, which is how often it is moved and
    seen. tokens: that stand for them, with each sample, as prompts' tokens are counted."""

    pictures: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateReport:
    """Sums over one worker's share of a batch; of a replica's devices, the first alone has any.

    response_tokens: that were drawn; sample_tokens: of the samples' responses, which a partial rollout
    has made in several steps. lengths: of the samples, by sample_tokens. going_on: groups that were put into
    the next step's pool. tools, games, agents: of jobs with any, whose tokens no other count has. shown:
    of jobs whose prompts show pictures.
    """

    samples: int = 0
    prompt_tokens: int = 0
    shown: PictureFigures | None = None
    response_tokens: int = 0
    sample_tokens: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    clipped: int = 0
    going_on: int = 0
    tools: ToolFigures | None = None
    games: GameFigures | None = None
    agents: AgentFigures | None = None
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """metrics: over the global batch, the mean of the step's optimizer steps. rows_by_age: this rank's
    rows by the number of weight versions that their first tokens were behind. lineage: of a partial
    rollout. passed: with a difficulty filter. tokens: of this rank's rows, prompts counted with each
    response. taught: the critic's metrics. bad_rows: what the step was made of, where a metric is not finite
    (`bad_batch`). passes: of the policy, none where a pipeline takes them all at once. received: second
    copies of the step before, by the rank that they came from. digest: of what it was made of, and made."""

    metrics: dict[str, float]
    rows_by_age: Counter[int]
    lineage: Lineage | None = None
    passed: Passed | None = None
    tokens: int = 0
    taught: dict[str, float] | None = None
    bad_rows: list[dict[str, Any]] = field(default_factory=list)
    passes: PassTimes = field(default_factory=PassTimes)
    received: dict[int, OwnWork] = field(default_factory=dict)
    digest: RankDigest = field(default_factory=RankDigest)
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """margins: β·h of each of this worker's held-out pairs."""

    margins: list[float]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardFigures:
    """Of one device. seconds: from the first step of the plan to the last, without checks. received_bytes:
    from other devices. delta_bytes: what came of them where changes alone travel. released_bytes, kept_bytes:
    of update weights, that went to the host and that are on the device while it generates. peak_bytes: of
    both layouts' weights and buffers; bound_bytes: what it may
    be. probe_gap: nats. back_seconds: of the copy that brought the update's weights back before;
    waited_seconds: of it, what the device did nothing else in. gather, select, swap: seconds of exchanges,
    of selection and copies, and of copies to the host, which overlap; swap_waited: of the last, what the
    device did nothing else in. check_seconds: of sums and log-probs; checks: how many sums and sequences
    were compared. host_bytes: kept there. course: of the device's
    memory until the KV cache is there, as `memory` of the event (docs/events.md) without the device.
    """

    seconds: float
    received_bytes: int
    delta_bytes: int | None = None
    released_bytes: int
    kept_bytes: int
    peak_bytes: int
    bound_bytes: int
    probe_gap: float
    back_seconds: float
    waited_seconds: float
    gather_seconds: float
    select_seconds: float
    swap_seconds: float
    swap_waited_seconds: float
    check_seconds: float
    checks: int
    host_bytes: int
    course: dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightFigures:
    """Of one device that generates. before: version that it held. received_seconds: of the arrival of a
    version; hidden_seconds: of these, in which the device generated; tokens: that it drew meanwhile, told by
    the first device of a replica alone. received_bytes, delta_bytes: as of a reshard. switch_seconds: of the
    copy from the host, in which the device did nothing else; check_seconds: of sums and log-probs after it.
    probe_gap: nats, None where they are not compared; checks: how many names, sums and sequences were.
    generating: whether it switched between two tokens of a batch."""

    before: int
    received_seconds: float
    hidden_seconds: float
    tokens: int
    received_bytes: int
    delta_bytes: int | None = None
    switch_seconds: float
    check_seconds: float
    probe_gap: float | None
    checks: int
    generating: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """checksum: of the weights that this device holds, the same on all devices of a job; empty where
    they were checked otherwise. reshard: None where weights came as a stream. in_flight: None where the
    device generated nothing meanwhile. rests: whether they are gone once the device has generated."""

    checksum: str
    span: Span
    reshard: ReshardFigures | None = None
    in_flight: InFlightFigures | None = None
    rests: bool = False
