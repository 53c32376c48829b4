"""Reports of a device's states to the driver. Without torch, which the driver does not need."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.prompts.passed_rows import PassedSamples
from rljob_runtime.prompts.pool_rows import Lineage
from rljob_runtime.record.digests import RankDigest
from rljob_runtime.record.event_types import PassTimes
from rljob_runtime.record.spans import DeviceWork, StageSpan


@dataclass(slots=True, kw_only=True)
class ToolFigures:
    """Sums over the tool calls of a share of the samples.

    tokens: of results. turns: of the policy. cut: samples that ended with a call in their last turn. calls,
    errors, timeouts, seconds: by tool; seconds from a call to its result. idle_seconds: time in which the
    device only waited.
    """

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
    """Sums over the games of a share of the samples.

    tokens: of observations. moves: turns that the game responded to. seconds: from these moves to the
    responses. cut: samples that ended with their last turn before their game; done: samples whose game ended;
    errors: samples whose game failed. idle_seconds: time in which the device only waited.
    """

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
    """Sums over the agent sessions of a share of the samples.

    tokens: of the agents' messages. turns: responses that are trained on; requests: all responses that agents
    requested; left_out: tokens of the others. seconds: of sessions. cut: samples that reached a limit;
    errors: samples whose agent failed. idle_seconds: time in which the device only waited.
    """

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
    """Counts of the pictures of a share of the prompts.

    pictures: those of each prompt counted once, as they are moved and encoded once. tokens: placeholder
    tokens, counted with each sample like other prompt tokens.
    """

    pictures: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateReport:
    """Sums over one worker's share of a batch. Only the first device of a replica reports any.

    response_tokens: tokens that were drawn; sample_tokens: tokens of the samples' responses, which a partial
    rollout draws over several steps. lengths: count of samples by sample_tokens. going_on: groups that were
    put into the next step's pool. tools, games, agents: of jobs with these; no other count includes their
    tokens. shown: of jobs with pictures.
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
    span: StageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """Result of one rank's update.

    metrics: over the global batch, the mean of the step's optimizer steps. rows_by_age: this rank's rows by
    the number of weight versions that their first tokens were behind. lineage: of a partial rollout. passed:
    with a difficulty filter. tokens: of this rank's rows, prompts counted with each response. critic_metrics:
    of the critic. bad_rows: inputs of the step, if a metric is not finite (`bad_batch`). passes: of the
    policy; none where a pipeline runs them together. received: work of the step before's second copies, by
    the sending rank. digest: of the inputs and the result.
    """

    metrics: dict[str, float]
    rows_by_age: Counter[int]
    lineage: Lineage | None = None
    passed: PassedSamples | None = None
    tokens: int = 0
    critic_metrics: dict[str, float] | None = None
    bad_rows: list[dict[str, Any]] = field(default_factory=list)
    passes: PassTimes = field(default_factory=PassTimes)
    received: dict[int, DeviceWork] = field(default_factory=dict)
    digest: RankDigest = field(default_factory=RankDigest)
    span: StageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """The margins β·h of this worker's held-out pairs."""

    margins: list[float]
    span: StageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardFigures:
    """Measurements of a reshard on one device.

    seconds: from the first step of the plan to the last, without checks. received_bytes: from other devices.
    delta_bytes: bytes actually transferred where only changes are sent. released_bytes, kept_bytes: update
    weights that are on the host, and on the device, during generation. peak_bytes: peak of both layouts'
    weights and buffers; bound_bytes: its upper bound. probe_gap: nats. back_seconds: of the earlier copy that
    moved the update's weights back; waited_seconds: part of it in which the device only waited. gather,
    select, swap: seconds of exchanges, of selection and copies, and of copies to the host, which overlap;
    swap_waited: part of the last in which the device only waited. check_seconds: of sums and log-probs;
    checks: number of sums and sequences that were compared. host_bytes: reserved on the host. course: the
    device's memory until the KV cache is allocated, as `memory` of the event (docs/events.md) without the
    device.
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
    """Measurements of one device that received weights while it generated.

    before: previous version of the weights. received_seconds: duration of the transfer; hidden_seconds: part
    of it in which the device generated; tokens: drawn meanwhile, reported only by the first device of a
    replica. received_bytes, delta_bytes: as for a reshard. switch_seconds: of the copy from the host, in
    which the device does nothing else; check_seconds: of the sums and log-probs after it. probe_gap: nats,
    None if log-probs are not compared; checks: number of names, sums and sequences that were. generating:
    whether it switched between two tokens of a batch.
    """

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
    """Result of one device's weight sync.

    checksum: of this device's weights, equal on all devices of a job; empty if they were checked otherwise.
    reshard: None if weights came as a stream. in_flight: None if the device generated nothing meanwhile.
    rests: whether the weights are released once the device has generated.
    """

    checksum: str
    span: StageSpan
    reshard: ReshardFigures | None = None
    in_flight: InFlightFigures | None = None
    rests: bool = False
