"""The events of a run, a type each, with their fields as a line of `events.jsonl` has them.

Writers make them, `events` writes and reads them; docs/events.md is generated from here. What has no default
is in every line; a field that is None is left out.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from pydantic import Field

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Of 64 bits: a log with others was spoiled, and nobody can compute with them."""
MOST_TIMED_PASSES = 64
"""Of a step, whose times are told."""
NULL = {"null": True}
"""Of a field that is written as null where it is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have."""

    time: float = math.nan
    """Unix seconds; the log sets it."""
    kind: str = ""
    """Which event it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStartedEvent(Event):
    """A driver's process begins the run, or goes on with it."""

    kind: Literal["run_started"] = "run_started"
    name: str
    """The job's."""
    steps: Integer
    """That the job asks for."""
    model: str | None = None
    """Name of a builtin one, or path."""
    algorithm: str | None = None
    """Its name in the spec."""
    dataset: str | None = field(default=None, metadata=NULL)
    """Dataset, file or game that prompts come from."""
    devices: Integer | None = None
    """That the job uses."""
    placement: str | None = None
    """`colocated` or `separated`."""
    rollout_engine: str | None = None
    """Its name in the spec."""
    update_engine: str | None = None
    """Its name in the spec."""
    global_batch_size: Integer | None = None
    """Prompts of a step."""
    samples_per_prompt: Integer | None = None
    """Responses to each of them."""
    seed: Integer | None = None
    """Of all random numbers."""
    device_memory_bytes: Integer | None = field(default=None, metadata=NULL)
    """What each device may hold."""
    resumed_from: Integer | None = None
    """Step that the run goes on after."""
    job_folder: str | None = None
    """That the job's paths are relative to."""
    machine: dict[str, str] = field(default_factory=dict)
    """Processor, cores, system and Python of the driver's machine: label → text."""
    versions: dict[str, str] = field(default_factory=dict)
    """Package → version."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Place in the job and path of each file of data, rewards and tokenizers → digest of what is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent(Event):
    """Set-up work, such as the warm-up of `tiny`."""

    kind: Literal["progress"] = "progress"
    message: str
    """What is done now."""
    fraction: float | None = None
    """Of it, done: 0–1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEvent(Event):
    """A stage ran on a worker."""

    kind: Literal["phase"] = "phase"
    name: str
    """generate, reward-model, reference, teacher, values, reward, critic, update, sync; compare, of held-out
    [pairs](algorithms.md)."""
    step: Integer
    """That it ran for."""
    role: str | None = None
    """Of the worker: device, rollout, update or reward."""
    device: Integer | None = None
    """The worker's number among those of its role."""
    start: float
    """Unix seconds."""
    end: float
    """Unix seconds."""
    waited_seconds: float = 0.0
    """Of it, in which there were no samples to work on."""
    evaluation: bool = False
    """Whether it was for held-out prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A response's first tokens: at most 48 of each, the best and the worst response of a group first, and
    2.5 KiB of a group; an evaluation tells none."""

    ids: list[Integer]
    """In the vocabulary."""
    texts: list[str]
    """Of each on its own."""
    logprobs: list[float | None]
    """The rollout's, nats; null for a token that the policy did not draw."""
    version: Integer
    """Of the weights that drew the first one."""
    versions: list[tuple[Integer | None, Integer]] | None = None
    """Runs of (version, tokens), where each token's is known, which it is not with `flow.mode: async`
    unless with a partial rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownResponse:
    """A sample, as far as it is shown."""

    text: str = ""
    """Decoded, without special tokens."""
    reward: float | None = None
    """Weighted sum of its scores."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """Reward → score, before its weight."""
    length: Integer | None = None
    """Tokens that the policy drew."""
    tokens: Tokens | None = None
    """Its first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPicture:
    """A picture of a prompt, made anew of its pixels, in the order of the text's `<image>`."""

    width: Integer
    """In pixels, as the model sees it."""
    height: Integer
    """Likewise."""
    format: Literal["png", "jpeg"] | None = None
    """Of the content."""
    content: str | None = None
    """In base64, at most 256 pixels a side and 16 KiB of a group; none where they do not suffice, which they
    do for 8 pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Samples of one prompt."""

    prompt: str = ""
    """Its text."""
    pictures: list[ShownPicture] | None = None
    """That it shows."""
    answer: str | None = field(default=None, metadata=NULL)
    """The right one, where the data has it."""
    responses: list[ShownResponse] = field(default_factory=list)
    """To it."""


@dataclass(slots=True)
class PassTimes:
    """Passes with gradient that a rank made in a step."""

    count: Integer = 0
    """How many."""
    tokens: list[Integer] = field(default_factory=list)
    """Of the first of them."""
    seconds: list[float] = field(default_factory=list)
    """Of the same ones."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds):
            raise ValueError("tokens and seconds are of the same passes")

    def add(self, tokens: int, seconds: float) -> None:
        """One pass, over so many tokens."""
        self.count += 1
        if len(self.tokens) < MOST_TIMED_PASSES:
            self.tokens.append(tokens)
            self.seconds.append(round(seconds, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What a step was made of and made, for [`rljob replay`](replay.md): digests in hex, none of which
    depends on who had what."""

    prompts: str
    """Of the prompts' tokens."""
    batch: str
    """Of the samples' tokens and of each number of a token that the update read, bit by bit."""
    rewards: str
    """Of the numbers of a sample that the update read: reward, advantage."""
    weights: str
    """Sum over the bits of what is trained, after the step."""
    chain: str
    """SHA-256 of the step before's and of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent(Event):
    """A step is done."""

    kind: Literal["step"] = "step"
    step: Integer
    """Counted from 1."""
    seconds: float
    """That it took."""
    metrics: dict[str, float | None]
    """[Name](#metrics-of-a-step) → number."""
    staleness: dict[Integer, Integer] = field(default_factory=dict)
    """Versions behind → rows."""
    passes: PassTimes | None = None
    """The update's, with gradient, of the rank whose took longest; none with a pipeline."""
    samples: list[Group] = field(default_factory=list)
    """A few groups."""
    phases: dict[str, float] = field(default_factory=dict)
    """Name → seconds of the slowest worker."""
    prompt_rewards: list[float | None] | None = None
    """Mean reward of each prompt's samples, by its number in the batch."""
    digest: Digest | None = None
    """Of what the step was made of and made."""


@dataclass(frozen=True, kw_only=True)
class SetFigures:
    """Of one set of held-out prompts."""

    accuracy: float
    """Share of samples that passed, 0–1."""
    stderr: float | None = None
    """Of the accuracy, over prompts."""
    reward: float | None = None
    """Mean over its samples."""
    n: Integer
    """Prompts."""
    k: Integer = 1
    """Samples a prompt."""
    pass_at_k: float | None = None
    """Share of prompts that some sample passed."""
    prompt_accuracies: list[float | None] | None = None
    """Share of each prompt's samples that passed, by its number in the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEvent(SetFigures, Event):
    """Held-out prompts were sampled under the present weights."""

    kind: Literal["evaluation"] = "evaluation"
    step: Integer
    """Steps that were done."""
    samples: list[Group] = field(default_factory=list)
    """A few groups."""
    suites: dict[str, SetFigures] | None = None
    """Set beside the job's own → the same figures."""
    seconds: float | None = None
    """That it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a device held from the first bucket of a reshard on."""

    device: Integer
    """Its number."""
    seconds: list[float]
    """Since the first bucket."""
    update_bytes: list[float] | None = None
    """At each of these times."""
    rollout_bytes: list[float] | None = None
    """Likewise."""
    buffer_bytes: list[float] | None = None
    """Likewise."""
    cache_bytes: list[float] | None = None
    """The KV cache's."""
    other_bytes: list[float] | None = None
    """What is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardEvent(Event):
    """The rollout layout got the update layout's weights by a plan."""

    kind: Literal["reshard"] = "reshard"
    step: Integer
    """Whose weights went to the rollout, 0 before the first."""
    seconds: float
    """Of the slowest device, without the checks."""
    received_bytes: Integer | None = None
    """From other devices, over all devices."""
    delta_bytes: Integer | None = None
    """What came of them with `resharding.deltas`, as changes or, where that is less, whole; none where
    nothing had come before."""
    released_bytes: Integer | None = None
    """Update weights that went to the host, over all devices."""
    kept_bytes: Integer | None = None
    """Update weights that stayed, over all devices: Eq. 3's R is 0 where nothing stayed."""
    peak_bytes: Integer
    """Weights of both layouts and buffers, on the fullest device."""
    bound_bytes: Integer
    """What they may be."""
    probe_gap: float | None = None
    """Largest distance of log-probs between the engines, nats."""
    back_seconds: float | None = None
    """Of the copy that brought the update's weights back before."""
    overlap: float | None = None
    """Share of that copy that was hidden."""
    gather_seconds: float | None = None
    """Of the slowest device's exchanges."""
    select_seconds: float | None = None
    """Of its selection and copies."""
    swap_seconds: float | None = None
    """Of its copies to the host; the three overlap."""
    swap_waited_seconds: float | None = None
    """What the device waited for the last of them."""
    check_seconds: float | None = None
    """Of the checks."""
    checks: Integer | None = None
    """Comparisons of names, sums and log-probs that passed."""
    host_bytes: Integer | None = None
    """Of all hosts, kept for the swap."""
    memory: Memory | None = None
    """Of the fullest device, from the first bucket on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightEvent(Event):
    """Weights came while devices generated."""

    kind: Literal["in_flight"] = "in_flight"
    step: Integer
    """The version of the weights."""
    before: Integer | None = None
    """The version that it replaced."""
    received_seconds: float
    """Of the slowest device: from the first byte to the verified last."""
    hidden_seconds: float | None = None
    """Of them, in which that device generated."""
    received_bytes: Integer | None = None
    """By all devices."""
    delta_bytes: Integer | None = None
    """What came of them with `resharding.deltas`, as changes or, where that is less, whole; none where
    nothing had come before."""
    tokens: Integer | None = None
    """That all devices drew while weights came."""
    switch_seconds: float
    """Of the slowest device: the copy from the host, in which it generated nothing."""
    check_seconds: float | None = None
    """Of sums and log-probs, between two batches."""
    probe_gap: float | None = None
    """Largest distance of log-probs between the engines, nats."""
    checks: Integer | None = None
    """Comparisons of names, sums and log-probs that passed."""
    devices: Integer | None = None
    """That generate."""
    generating: Integer | None = None
    """Those of them that switched between two tokens of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """What one says of itself."""

    index: Integer = 0
    """Its number."""
    peak_bytes: Integer = 0
    """At the fullest moment of the step."""
    capacity_bytes: Integer = 0
    """What it may hold."""
    replicated: bool | None = None
    """With two copies of each row: whether there are two now."""
    times_alone: Integer | None = None
    """How often its copy was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTraffic:
    """What a state's clients did."""

    rows: Integer = 0
    """That it was done with."""
    bytes_read: Integer = 0
    """Of columns."""
    bytes_written: Integer = 0
    """Likewise."""
    wait_seconds: float = 0.0
    """In claims."""
    transfer_seconds: float = 0.0
    """In reads and writes."""
    waits: dict[str, float] = field(default_factory=dict)
    """State that was waited for, or `room` → seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What a state read of another's."""

    from_: Annotated[str, Field(alias="from")]
    """State that wrote it."""
    to: str
    """State that read it."""
    rows: Integer
    """Each counts once, however many of its columns were read."""
    bytes: Integer
    """Of the columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRows:
    """Rows at a state, a count for each look."""

    lacking: list[Integer]
    """A column."""
    ready: list[Integer]
    """For a claim."""
    leased: list[Integer]
    """To a worker."""
    done: list[Integer]
    """Since the first look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows by state over the step's time. The first look is the last of the step before."""

    start: float
    """Of the first look, unix seconds."""
    seconds: list[float]
    """Of each look since then."""
    states: dict[str, StateRows]
    """Name → counts; [what they mean](dock.md#what-is-seen-of-it)."""

    def __post_init__(self) -> None:
        counts = (c for s in self.states.values() for c in (s.lacking, s.ready, s.leased, s.done))
        if not self.seconds or any(len(count) != len(self.seconds) for count in counts):
            raise ValueError("each state has a count for each look")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockEvent(Event):
    """What a step moved through the dock."""

    kind: Literal["dock"] = "dock"
    step: Integer
    """That it was for."""
    states: dict[str, StateTraffic] = field(default_factory=dict)
    """By name."""
    edges: list[Edge] = field(default_factory=list)
    """What was read of whom."""
    data_paths: dict[str, dict[str, Integer]] = field(default_factory=dict)
    """State → pairs of a client and a warehouse that it reads by `shared` memory and by `tcp`."""
    warehouses: list[Warehouse] = field(default_factory=list)
    """Those that answered."""
    rows: Rows | None = None
    """By state, over the step's time."""
    dropped: dict[str, Integer] | None = None
    """Reason (`lost`, `stale`) → rows of the step that were generated again."""
    regenerated: Integer | None = None
    """All of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryEvent(Event):
    """Devices, or processes beside them, the [driver](recovery.md#the-driver) among them, died, or were slow,
    and were replaced while the run went on."""

    kind: Literal["recovery"] = "recovery"
    devices: list[Integer]
    """Numbers of those that were replaced."""
    roles: list[str] = field(default_factory=list)
    """Of these: `device` where they have all, else `update` or `rollout`."""
    others: list[str] = field(default_factory=list)
    """Processes without a device that died: `feeder`, `reward-0`, `driver`."""
    hosts: list[str]
    """Where the devices were."""
    step: Integer
    """Steps that are done, after which training goes on."""
    source: str
    """What new devices that train had their state from: `peers` that held the same, second `copies`
    (update.redundancy), the last `checkpoint`, or the model at the `beginning`; `none` where none of them
    trains."""
    rolled_back_to: Integer | None = None
    """The step, where steps after it are trained again."""
    seconds: float
    """Since the death was seen."""
    parts: dict[str, float] = field(default_factory=dict)
    """Of them: `look` who died, `drop` what was on its way, `keep` what the living hold, wait for a `place`
    where training may go on without, `start` processes, groups and engines, give them their `state`, `meet`
    whom weights are exchanged with."""
    message: str
    """What was seen of it."""
    slow: bool = False
    """Whether they lived and were [stragglers](guards.md#stragglers), or on the node of one."""
    left_out: list[Integer] = field(default_factory=list)
    """Numbers of those that had no place, so that the run goes on without them: with [fewer
    replicas](recovery.md#with-fewer-replicas) (elastic.update), or with [fewer devices that
    generate](recovery.md#with-fewer-devices-that-generate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasEvent(Event):
    """With elastic.update: how many [replicas train](recovery.md#with-fewer-replicas), at the beginning and
    whenever it is another number."""

    kind: Literal["replicas"] = "replicas"
    step: Integer
    """Steps that are done."""
    live: Integer
    """Replicas that train from here on."""
    wanted: Integer
    """Replicas of the job."""
    left_out: list[Integer] = field(default_factory=list)
    """Numbers of the devices that are missing."""
    hosts: list[str] = field(default_factory=list)
    """Where these were."""
    seconds: float = 0.0
    """In which no step ran for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerEvent(Event):
    """A device is [slower than its peers](guards.md#stragglers), or is so no more."""

    kind: Literal["straggler"] = "straggler"
    step: Integer
    """At which it was told."""
    state: str
    """That it is slow in: generate, update, one that scores, link: a host's reads and writes of rows, or
    copy: from one device to another, a second copy (update.redundancy)."""
    devices: list[Integer]
    """Its number; of devices that share a model while they generate, or a link, all of them; of a copy, who
    sends and who receives."""
    hosts: list[str]
    """Where they are."""
    status: str
    """slow, over, or replaced, which ends it too."""
    factor: float
    """Times the median of its peers that it took: the median of these steps."""
    steps: Integer
    """So many in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeEvent(Event):
    """Devices that generate came or left."""

    kind: Literal["resize"] = "resize"
    from_: Annotated[Integer, Field(alias="from")]
    """Devices that generated."""
    to: Integer
    """Devices that generate."""
    step: Integer
    """Steps that were done."""
    waited_seconds: float
    """Since it was asked for, or devices were lost that have a place again."""
    stopped_seconds: float
    """In which no step ran."""
    given_up: Integer | None = None
    """Devices that failed to join."""
    lost: list[Integer] = field(default_factory=list)
    """Numbers of those that died and had no [place](recovery.md#with-fewer-devices-that-generate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What an operator of torch took."""

    name: str
    """Torch's."""
    calls: Integer
    """How many."""
    self_seconds: float
    """In all calls, without what it called itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileEvent(Event):
    """A [trace](profiling.md) was written."""

    kind: Literal["profile"] = "profile"
    step: Integer
    """That was recorded."""
    rank: Integer
    """Of the device."""
    state: str
    """That was recorded."""
    path: str
    """In the run's folder."""
    seconds: float
    """That the state took."""
    bytes: Integer
    """Of the file."""
    operators: list[Operator] = field(default_factory=list)
    """Those with most time of their own, first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvent(Event):
    """A checkpoint is on the disk."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: Integer
    """Steps that were done."""
    path: str
    """Its folder."""
    seconds: float | None = None
    """That it took."""
    bytes: Integer | None = None
    """Of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEvent(Event):
    """The last evaluation is the best so far, and its checkpoint stays."""

    kind: Literal["best"] = "best"
    step: Integer
    """Of the evaluation."""
    metric: str
    """That is compared."""
    value: float
    """Of the metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedEvent(Event):
    """The checkpoint is whole on remote storage."""

    kind: Literal["copied"] = "copied"
    step: Integer
    """Of the checkpoint."""
    uri: str
    """Of its folder."""
    bytes: Integer | None = None
    """Of its files."""
    seconds: float | None = None
    """That the copy took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardErrorEvent(Event):
    """Scores of a reward failed; `onError` of the reward says what became of their samples."""

    kind: Literal["reward_error"] = "reward_error"
    step: Integer
    """Of the samples."""
    reward: str
    """Its name."""
    message: str
    """The first error."""
    count: Integer = 1
    """Samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmEvent(Event):
    """A guard found something, or finds it no more."""

    kind: Literal["alarm"] = "alarm"
    step: Integer
    """At which it was told."""
    alarm: str
    """Its [guard](guards.md)."""
    state: str
    """raised or cleared."""
    policy: str
    """What follows: warn, stop or rollback."""
    message: str
    """With value, limit and the field that sets it."""
    value: float | None = None
    """Of the metric."""
    since: Integer | None = None
    """First step of what raised it."""
    rolled_back_to: Integer | None = None
    """Step that the run goes on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Who was waited for, or did not answer."""

    process: str
    """Its name."""
    why: str
    """What is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangEvent(Event):
    """A deadline passed, or [`rljob stacks`](debugging.md#stuck) asked."""

    kind: Literal["hang"] = "hang"
    stage: str
    """That did not end, or `dock`, `collective`, `asked`."""
    message: str
    """The deadline's error, and what the run was doing."""
    folder: str
    """With everybody's stacks; "" where it could not be written."""
    step: Integer | None = None
    """Steps that were done."""
    missing: list[Missing] = field(default_factory=list)
    """The awaited first."""
    waiting: list[str] = field(default_factory=list)
    """Who waits for what, a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningEvent(Event):
    """Something went wrong, and the run goes on."""

    kind: Literal["warning"] = "warning"
    step: Integer | None = None
    """That it was in."""
    message: str
    """What."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinishedEvent(Event):
    """The driver's last word."""

    kind: Literal["run_finished"] = "run_finished"
    status: str
    """succeeded, failed or interrupted."""
    exit_code: Integer | None = None
    """Of `rljob run`."""
    message: str = ""
    """Why it ended so."""
    seconds: float | None = None
    """Of this process."""
    step: Integer | None = None
    """Steps that were done."""
    checkpoint: str | None = None
    """Folder of the last one; "" without."""
    next: list[str] | None = None
    """Commands that make sense now."""


AnyEvent = (
    RunStartedEvent | ProgressEvent | PhaseEvent | StepEvent | EvaluationEvent | ReshardEvent | InFlightEvent
    | DockEvent | RecoveryEvent | ReplicasEvent | ResizeEvent | ProfileEvent | CheckpointEvent | BestEvent
    | CopiedEvent | RewardErrorEvent | AlarmEvent | StragglerEvent | HangEvent | WarningEvent
    | RunFinishedEvent
)  # fmt: skip
