"""The events of a run: one type per event, with the fields of a line of `events.jsonl`.

Components create the events, `events` writes and reads them, and docs/events.md is generated from this file.
Fields without a default are in every line; fields that are None are left out.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from pydantic import Field

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A signed 64-bit integer. A log with larger numbers is damaged, and its numbers cannot be used."""
MOST_TIMED_PASSES = 64
"""Passes of a step whose times are recorded."""
NULL = {"null": True}
"""Metadata of a field that is written as null when it is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields that all events have."""

    time: float = math.nan
    """Unix seconds, set by the log."""
    kind: str = ""
    """Type of the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStartedEvent(Event):
    """A driver process starts or resumes the run."""

    kind: Literal["run_started"] = "run_started"
    name: str
    """Name of the job."""
    steps: Integer
    """Number of steps that the job requests."""
    model: str | None = None
    """Name of a builtin model, or path of the model."""
    algorithm: str | None = None
    """Name of the algorithm in the spec."""
    dataset: str | None = field(default=None, metadata=NULL)
    """Dataset, file or game that the prompts come from."""
    devices: Integer | None = None
    """Number of devices that the job uses."""
    placement: str | None = None
    """`colocated` or `separated`."""
    rollout_engine: str | None = None
    """Name of the rollout engine in the spec."""
    update_engine: str | None = None
    """Name of the update engine in the spec."""
    global_batch_size: Integer | None = None
    """Prompts per step."""
    samples_per_prompt: Integer | None = None
    """Responses per prompt."""
    seed: Integer | None = None
    """Seed of all random numbers."""
    device_memory_bytes: Integer | None = field(default=None, metadata=NULL)
    """Memory limit of each device."""
    resumed_from: Integer | None = None
    """Last finished step before the run was resumed."""
    job_folder: str | None = None
    """Folder that the paths in the job are relative to."""
    machine: dict[str, str] = field(default_factory=dict)
    """Processor, cores, system and Python of the driver's machine: label → text."""
    versions: dict[str, str] = field(default_factory=dict)
    """Package → version."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Field of the job and path of each file of data, rewards and tokenizers → digest of its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent(Event):
    """Progress of set-up work, such as the warm-up of `tiny`."""

    kind: Literal["progress"] = "progress"
    message: str
    """The current task."""
    fraction: float | None = None
    """Share of the task that is done, 0–1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEvent(Event):
    """A stage ran on a worker."""

    kind: Literal["phase"] = "phase"
    name: str
    """Name of the stage: generate, reward-model, reference, teacher, values, reward, critic, update or sync;
    compare for held-out [pairs](algorithms.md)."""
    step: Integer
    """Step that the stage ran for."""
    role: str | None = None
    """Role of the worker: device, rollout, update or reward."""
    device: Integer | None = None
    """Number of the worker among those of its role."""
    start: float
    """Start of the stage in unix seconds."""
    end: float
    """End of the stage in unix seconds."""
    waited_seconds: float = 0.0
    """Seconds of the stage in which the worker had no samples to process."""
    evaluation: bool = False
    """Whether the stage ran for held-out prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The first tokens of a response, at most 48. A group has at most 2.5 KiB of them; its best and its worst
    response come first. Evaluations have none."""

    ids: list[Integer]
    """Token ids in the vocabulary."""
    texts: list[str]
    """Text of each token, decoded separately."""
    logprobs: list[float | None]
    """Log-probs of the rollout in nats; null for tokens that the policy did not draw."""
    version: Integer
    """Version of the weights that drew the first token."""
    versions: list[tuple[Integer | None, Integer]] | None = None
    """Runs of (version, number of tokens), where the version of each token is known. With `flow.mode: async`
    it is known only with a partial rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownResponse:
    """One sample of a group."""

    text: str = ""
    """Decoded response without special tokens."""
    reward: float | None = None
    """Weighted sum of the scores."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """Reward → score before its weight."""
    length: Integer | None = None
    """Number of tokens that the policy drew."""
    tokens: Tokens | None = None
    """First tokens of the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPicture:
    """A picture of a prompt, encoded again from its pixels. Pictures are in the order of `<image>` in the
    text."""

    width: Integer
    """Width in pixels, as the model sees it."""
    height: Integer
    """Height in pixels, as the model sees it."""
    format: Literal["png", "jpeg"] | None = None
    """Format of the content."""
    content: str | None = None
    """Picture in base64, at most 256 pixels per side and 16 KiB per group; none if it does not fit, or after
    the first 8 pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The samples of one prompt."""

    prompt: str = ""
    """Text of the prompt."""
    pictures: list[ShownPicture] | None = None
    """Pictures of the prompt."""
    answer: str | None = field(default=None, metadata=NULL)
    """Correct answer, if the data has one."""
    responses: list[ShownResponse] = field(default_factory=list)
    """Responses to the prompt."""


@dataclass(slots=True)
class PassTimes:
    """The forward and backward passes of a rank in one step."""

    count: Integer = 0
    """Number of passes."""
    tokens: list[Integer] = field(default_factory=list)
    """Tokens of each of the first passes."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of the same passes."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds):
            raise ValueError("tokens and seconds are of the same passes")

    def add(self, tokens: int, seconds: float) -> None:
        """Record one pass over this many tokens."""
        self.count += 1
        if len(self.tokens) < MOST_TIMED_PASSES:
            self.tokens.append(tokens)
            self.seconds.append(round(seconds, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Digests in hex of the inputs and the result of a step, for [`rljob replay`](replay.md). They do not
    depend on how rows and weights are distributed."""

    prompts: str
    """Digest of the prompts' tokens."""
    batch: str
    """Digest of the samples' tokens and of each per-token number that the update read, bit by bit."""
    rewards: str
    """Digest of the per-sample numbers that the update read: rewards and advantages."""
    weights: str
    """Sum over the bits of the trained weights after the step."""
    chain: str
    """SHA-256 of the chain value of the step before and of these digests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent(Event):
    """A step is done."""

    kind: Literal["step"] = "step"
    step: Integer
    """Number of the step, counted from 1."""
    seconds: float
    """Duration of the step."""
    metrics: dict[str, float | None]
    """[Name](#metrics-of-a-step) → number."""
    staleness: dict[Integer, Integer] = field(default_factory=dict)
    """Weight versions behind → number of rows."""
    passes: PassTimes | None = None
    """Passes of the update with gradient, on the rank that took longest; none with a pipeline."""
    samples: list[Group] = field(default_factory=list)
    """Up to three groups of samples."""
    phases: dict[str, float] = field(default_factory=dict)
    """Name → seconds of the slowest worker."""
    prompt_rewards: list[float | None] | None = None
    """Mean reward of each prompt's samples, by the prompt's number in the batch."""
    digest: Digest | None = None
    """Digests of the inputs and the result of the step."""


@dataclass(frozen=True, kw_only=True)
class SetFigures:
    """Results of one set of held-out prompts."""

    accuracy: float
    """Share of samples that passed, 0–1."""
    stderr: float | None = None
    """Standard error of the accuracy, over prompts."""
    reward: float | None = None
    """Mean reward of the samples."""
    n: Integer
    """Number of prompts."""
    k: Integer = 1
    """Samples per prompt."""
    pass_at_k: float | None = None
    """Share of prompts with at least one sample that passed."""
    prompt_accuracies: list[float | None] | None = None
    """Share of each prompt's samples that passed, by the prompt's number in the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEvent(SetFigures, Event):
    """Held-out prompts were sampled with the current weights."""

    kind: Literal["evaluation"] = "evaluation"
    step: Integer
    """Number of finished steps."""
    samples: list[Group] = field(default_factory=list)
    """Up to three groups of samples."""
    suites: dict[str, SetFigures] | None = None
    """Name of each additional set → its results."""
    seconds: float | None = None
    """Duration of the evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of a device over the time of a reshard, from its first bucket on."""

    device: Integer
    """Number of the device."""
    seconds: list[float]
    """Seconds since the first bucket, one per measurement."""
    update_bytes: list[float] | None = None
    """Weights of the update layout at each of these times."""
    rollout_bytes: list[float] | None = None
    """Weights of the rollout layout at each of these times."""
    buffer_bytes: list[float] | None = None
    """Buffers at each of these times."""
    cache_bytes: list[float] | None = None
    """KV cache at each of these times."""
    other_bytes: list[float] | None = None
    """All other memory at each of these times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardEvent(Event):
    """The rollout layout received the weights of the update layout by a plan."""

    kind: Literal["reshard"] = "reshard"
    step: Integer
    """Step whose weights the rollout received, 0 before the first."""
    seconds: float
    """Duration on the slowest device, without the checks."""
    received_bytes: Integer | None = None
    """Bytes from other devices, summed over all devices."""
    delta_bytes: Integer | None = None
    """Bytes actually transferred with `resharding.deltas`: the changes, or the full weights where these are
    smaller; none if no weights were received before."""
    released_bytes: Integer | None = None
    """Update weights moved to the host, summed over all devices."""
    kept_bytes: Integer | None = None
    """Update weights left on the devices, summed over all devices. R of Eq. 3 is 0 if this is 0."""
    peak_bytes: Integer
    """Peak of both layouts' weights and of the buffers, on the fullest device."""
    bound_bytes: Integer
    """Upper bound of that peak."""
    probe_gap: float | None = None
    """Largest difference of log-probs between the engines, in nats."""
    back_seconds: float | None = None
    """Duration of the earlier copy that moved the update's weights back from the host."""
    overlap: float | None = None
    """Share of that copy that was hidden behind other work."""
    gather_seconds: float | None = None
    """Duration of the exchanges on the slowest device."""
    select_seconds: float | None = None
    """Duration of selection and copies on the slowest device."""
    swap_seconds: float | None = None
    """Duration of the copies to the host on the slowest device. Gather, select and swap overlap."""
    swap_waited_seconds: float | None = None
    """Time that the device waited for the copies to the host."""
    check_seconds: float | None = None
    """Duration of the checks."""
    checks: Integer | None = None
    """Number of comparisons of names, sums and log-probs that passed."""
    host_bytes: Integer | None = None
    """Host memory reserved for the swap, summed over all hosts."""
    memory: Memory | None = None
    """Memory of the fullest device, from the first bucket on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightEvent(Event):
    """Devices received weights while they generated."""

    kind: Literal["in_flight"] = "in_flight"
    step: Integer
    """Version of the new weights."""
    before: Integer | None = None
    """Version that it replaced."""
    received_seconds: float
    """Time on the slowest device from the first byte to the last verified byte."""
    hidden_seconds: float | None = None
    """Part of that time in which the device generated."""
    received_bytes: Integer | None = None
    """Bytes received by all devices."""
    delta_bytes: Integer | None = None
    """Bytes actually transferred with `resharding.deltas`: the changes, or the full weights where these are
    smaller; none if no weights were received before."""
    tokens: Integer | None = None
    """Tokens that all devices drew during the transfer."""
    switch_seconds: float
    """Duration of the copy from the host on the slowest device, which does not generate meanwhile."""
    check_seconds: float | None = None
    """Duration of the checks of sums and log-probs, between two batches."""
    probe_gap: float | None = None
    """Largest difference of log-probs between the engines, in nats."""
    checks: Integer | None = None
    """Number of comparisons of names, sums and log-probs that passed."""
    devices: Integer | None = None
    """Number of devices that generate."""
    generating: Integer | None = None
    """Number of devices that switched between two tokens of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """The state of a warehouse, as the warehouse reports it."""

    index: Integer = 0
    """Number of the warehouse."""
    peak_bytes: Integer = 0
    """Peak memory within the step."""
    capacity_bytes: Integer = 0
    """Memory limit."""
    replicated: bool | None = None
    """Whether every row currently has two copies; only with replication."""
    times_alone: Integer | None = None
    """Number of times that the second copy was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTraffic:
    """The traffic of the clients of one state."""

    rows: Integer = 0
    """Rows that the state finished."""
    bytes_read: Integer = 0
    """Bytes of the columns that it read."""
    bytes_written: Integer = 0
    """Bytes of the columns that it wrote."""
    wait_seconds: float = 0.0
    """Time spent waiting in claims."""
    transfer_seconds: float = 0.0
    """Time spent in reads and writes."""
    waits: dict[str, float] = field(default_factory=dict)
    """Awaited state, or `room` → seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The rows that one state read from another."""

    from_: Annotated[str, Field(alias="from")]
    """State that wrote the rows."""
    to: str
    """State that read the rows."""
    rows: Integer
    """Number of rows; a row counts once, however many of its columns were read."""
    bytes: Integer
    """Bytes of the columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRows:
    """Counts of the rows at a state, one per observation."""

    lacking: list[Integer]
    """Rows that lack a column."""
    ready: list[Integer]
    """Rows that can be claimed."""
    leased: list[Integer]
    """Rows leased to a worker."""
    done: list[Integer]
    """Rows finished since the first observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Counts of rows by state over the time of a step. The first observation is the last one of the step
    before."""

    start: float
    """Unix seconds of the first observation."""
    seconds: list[float]
    """Seconds from the first observation to each observation."""
    states: dict[str, StateRows]
    """Name of the state → counts; see [their meaning](dock.md#what-is-seen-of-it)."""

    def __post_init__(self) -> None:
        counts = (c for s in self.states.values() for c in (s.lacking, s.ready, s.leased, s.done))
        if not self.seconds or any(len(count) != len(self.seconds) for count in counts):
            raise ValueError("each state has a count for each look")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockEvent(Event):
    """The traffic of the dock for one step."""

    kind: Literal["dock"] = "dock"
    step: Integer
    """Step that the traffic belongs to."""
    states: dict[str, StateTraffic] = field(default_factory=dict)
    """Traffic by name of the state."""
    edges: list[Edge] = field(default_factory=list)
    """Rows read, by writer and reader."""
    data_paths: dict[str, dict[str, Integer]] = field(default_factory=dict)
    """State → number of pairs of a client and a warehouse that it reads by `shared` memory and by `tcp`."""
    warehouses: list[Warehouse] = field(default_factory=list)
    """Warehouses that responded."""
    rows: Rows | None = None
    """Counts of rows by state over the time of the step."""
    dropped: dict[str, Integer] | None = None
    """Reason (`lost`, `stale`) → rows of the step that were generated again."""
    regenerated: Integer | None = None
    """Sum of these rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryEvent(Event):
    """Devices or other processes, including the [driver](recovery.md#the-driver), died or were slow, and were
    replaced while the run continued."""

    kind: Literal["recovery"] = "recovery"
    devices: list[Integer]
    """Numbers of the devices that were replaced."""
    roles: list[str] = field(default_factory=list)
    """Role of each of these devices: `device` where each device has all roles, otherwise `update` or
    `rollout`."""
    others: list[str] = field(default_factory=list)
    """Processes without a device that died: `feeder`, `reward-0`, `driver`."""
    hosts: list[str]
    """Hosts of these devices."""
    step: Integer
    """Number of finished steps, after which training continues."""
    source: str
    """Where new training devices got their state from: `peers` with the same state, second `copies`
    (update.redundancy), the last `checkpoint`, or the model at the `beginning`; `none` if no new device
    trains."""
    rolled_back_to: Integer | None = None
    """Step from which training is repeated, if steps are repeated."""
    seconds: float
    """Seconds since the death was detected."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by phase of the recovery: `look` for dead processes, `drop` unfinished work, `keep` the state
    of living processes, wait for a `place` where training can continue without it, `start` processes, groups
    and engines, send them their `state`, `meet` the peers that weights are exchanged with."""
    message: str
    """Observed cause."""
    slow: bool = False
    """Whether the devices were alive but were [stragglers](guards.md#stragglers), or on the node of a
    straggler."""
    left_out: list[Integer] = field(default_factory=list)
    """Numbers of the devices that could not be placed, so that the run continues without them: with [fewer
    replicas](recovery.md#with-fewer-replicas) (elastic.update), or with [fewer devices that
    generate](recovery.md#with-fewer-devices-that-generate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasEvent(Event):
    """The number of [replicas that train](recovery.md#with-fewer-replicas), with elastic.update: written at
    the start and after every change."""

    kind: Literal["replicas"] = "replicas"
    step: Integer
    """Number of finished steps."""
    live: Integer
    """Replicas that train from this step on."""
    wanted: Integer
    """Replicas that the job requests."""
    left_out: list[Integer] = field(default_factory=list)
    """Numbers of the missing devices."""
    hosts: list[str] = field(default_factory=list)
    """Hosts of these devices."""
    seconds: float = 0.0
    """Time without a running step because of the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerEvent(Event):
    """A device is [slower than its peers](guards.md#stragglers), or no longer is."""

    kind: Literal["straggler"] = "straggler"
    step: Integer
    """Step at which it was detected."""
    state: str
    """Where the device is slow: generate, update or a scoring state; link for a host's reads and writes of
    rows; copy for copies between two devices (update.redundancy)."""
    devices: list[Integer]
    """Number of the device. If devices share a model while they generate, or share a link, all of them; for a
    copy, the sender and the receiver."""
    hosts: list[str]
    """Hosts of these devices."""
    status: str
    """slow, over or replaced; over and replaced both end the state."""
    factor: float
    """Time relative to the median of its peers; median over these steps."""
    steps: Integer
    """Number of consecutive steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeEvent(Event):
    """The number of devices that generate changed."""

    kind: Literal["resize"] = "resize"
    from_: Annotated[Integer, Field(alias="from")]
    """Number of devices that generated before."""
    to: Integer
    """Number of devices that generate now."""
    step: Integer
    """Number of finished steps."""
    waited_seconds: float
    """Seconds since the resize was requested, or since devices were lost that can be placed again."""
    stopped_seconds: float
    """Time without a running step."""
    given_up: Integer | None = None
    """Number of devices that failed to join."""
    lost: list[Integer] = field(default_factory=list)
    """Numbers of the devices that died and could not be
    [placed](recovery.md#with-fewer-devices-that-generate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOperator:
    """The time spent in one torch operator."""

    name: str
    """Name of the operator in torch."""
    calls: Integer
    """Number of calls."""
    self_seconds: float
    """Time of all calls, without the operators that they called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileEvent(Event):
    """A [trace](profiling.md) was written."""

    kind: Literal["profile"] = "profile"
    step: Integer
    """Step that was recorded."""
    rank: Integer
    """Rank of the device."""
    state: str
    """State that was recorded."""
    path: str
    """Path of the trace, relative to the run's folder."""
    seconds: float
    """Duration of the state."""
    bytes: Integer
    """Size of the file."""
    operators: list[ProfiledOperator] = field(default_factory=list)
    """Operators with the longest self time, longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvent(Event):
    """A checkpoint was written to disk."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: Integer
    """Number of finished steps."""
    path: str
    """Folder of the checkpoint."""
    seconds: float | None = None
    """Time to write it."""
    bytes: Integer | None = None
    """Size of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEvent(Event):
    """The last evaluation is the best so far, and its checkpoint is retained."""

    kind: Literal["best"] = "best"
    step: Integer
    """Step of the evaluation."""
    metric: str
    """Metric that is compared."""
    value: float
    """Value of the metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedEvent(Event):
    """A checkpoint was fully copied to remote storage."""

    kind: Literal["copied"] = "copied"
    step: Integer
    """Step of the checkpoint."""
    uri: str
    """URI of its folder."""
    bytes: Integer | None = None
    """Size of its files."""
    seconds: float | None = None
    """Duration of the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardErrorEvent(Event):
    """A reward failed to score samples; `onError` of the reward decides what happens to them."""

    kind: Literal["reward_error"] = "reward_error"
    step: Integer
    """Step of the samples."""
    reward: str
    """Name of the reward."""
    message: str
    """First error."""
    count: Integer = 1
    """Number of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmEvent(Event):
    """A guard raised or cleared an alarm."""

    kind: Literal["alarm"] = "alarm"
    step: Integer
    """Step at which it was raised or cleared."""
    alarm: str
    """Name of the [guard](guards.md)."""
    state: str
    """raised or cleared."""
    policy: str
    """Action of the guard: warn, stop or rollback."""
    message: str
    """Cause, with value, limit and the field that sets the limit."""
    value: float | None = None
    """Value of the metric."""
    since: Integer | None = None
    """First step of the condition that raised the alarm."""
    rolled_back_to: Integer | None = None
    """Step that the run was rolled back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A process that did not respond, or that others waited for."""

    process: str
    """Name of the process."""
    why: str
    """Known cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangEvent(Event):
    """A deadline passed, or [`rljob stacks`](debugging.md#stuck) was called."""

    kind: Literal["hang"] = "hang"
    stage: str
    """Stage that did not end, or `dock`, `collective`, `asked`."""
    message: str
    """Error of the deadline, and the current activity of the run."""
    folder: str
    """Folder with the stacks of all processes; "" if it could not be written."""
    step: Integer | None = None
    """Number of finished steps."""
    missing: list[Missing] = field(default_factory=list)
    """Processes that did not respond; those that others waited for come first."""
    waiting: list[str] = field(default_factory=list)
    """One line per process: what it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningEvent(Event):
    """An error occurred that does not stop the run."""

    kind: Literal["warning"] = "warning"
    step: Integer | None = None
    """Step in which it occurred."""
    message: str
    """Description of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinishedEvent(Event):
    """The driver process ends the run."""

    kind: Literal["run_finished"] = "run_finished"
    status: str
    """succeeded, failed or interrupted."""
    exit_code: Integer | None = None
    """Exit code of `rljob run`."""
    message: str = ""
    """Reason for the status."""
    seconds: float | None = None
    """Duration of this process."""
    step: Integer | None = None
    """Number of finished steps."""
    checkpoint: str | None = None
    """Folder of the last checkpoint; "" if there is none."""
    next: list[str] | None = None
    """Suggested commands."""


AnyEvent = (
    RunStartedEvent | ProgressEvent | PhaseEvent | StepEvent | EvaluationEvent | ReshardEvent | InFlightEvent
    | DockEvent | RecoveryEvent | ReplicasEvent | ResizeEvent | ProfileEvent | CheckpointEvent | BestEvent
    | CopiedEvent | RewardErrorEvent | AlarmEvent | StragglerEvent | HangEvent | WarningEvent
    | RunFinishedEvent
)  # fmt: skip
