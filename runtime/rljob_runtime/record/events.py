"""The event log of a run: append-only JSON Lines, the single source of everything that is shown.

The driver writes; the terminal subscribes; the report and other tools read the file. Writing never
raises into training: failures are counted and said once.

Every event has `time` (unix seconds) and `kind`. A number that is not finite is written as null,
and text that is not valid Unicode with replacement characters. Fields in brackets may be missing;
readers ignore fields that they do not know.

kind          fields
run_started   name, steps; [model, algorithm, dataset, devices, placement, rollout_engine,
              update_engine, global_batch_size, samples_per_prompt, seed, device_memory_bytes,
              resumed_from, machine {label: text}, versions {package: text}]
progress      message; [fraction]                            set-up work, e.g. the warm-up of `tiny`
phase         name, step, start, end (unix s); [role, device, waited_seconds (of it, without
              samples to work on), evaluation]
              name: generate, reward-model, reference, teacher, values, compare, reward, critic,
              update or sync
step          step, seconds, metrics {name: number}; [phases {name: seconds}, samples,
              staleness {versions behind: rows}, passes {count, tokens [], seconds []}]
              passes: of the update, with gradient, on the rank whose took longest; the first of them timed
              samples: [{prompt, [answer], responses: [{text, reward, [parts, length,
              tokens {ids [], texts [], logprobs [], version, [versions [[version, tokens]]]}]}]}]
              tokens: the first of a few responses; logprobs: null where the policy did not draw it;
              version: of the weights that drew the first one; versions: of each, where that is known
evaluation    step, accuracy (0–1), n (prompts); [stderr, reward, samples, seconds, k (samples a prompt),
              pass_at_k, suites {name: {accuracy, stderr, reward, n, k, pass_at_k}}]
resize        step, from, to (devices that generate), waited_seconds (since it was asked for),
              stopped_seconds (no step ran); [given_up]      step: steps that were done
reshard       step, seconds (slowest device), received_bytes, released_bytes, kept_bytes (all devices),
              peak_bytes, bound_bytes (fullest device); [probe_gap (nats), back_seconds, overlap,
              gather_seconds, select_seconds, swap_seconds, swap_waited_seconds, check_seconds,
              host_bytes, checks, memory {device, seconds [], update_bytes [], rollout_bytes [],
              buffer_bytes [], [cache_bytes [], other_bytes []]}]
              released: to the host; kept: update weights beside the rollout's; overlap: share of the
              copy back that was hidden; checks: comparisons that passed; memory: of the fullest device
in_flight     step (the version), received_seconds (slowest device), switch_seconds (slowest device;
              generation stood still); [before (the version that it replaced), hidden_seconds (of
              received_seconds, in which that device generated), tokens (all devices drew meanwhile),
              received_bytes (all devices), check_seconds, checks, probe_gap (nats), devices, generating
              (those of them that switched within a batch)]
dock          step; [warehouses [{index, peak_bytes, capacity_bytes, [replicated, times_alone]}],
              states {name: {rows, bytes_read, bytes_written, wait_seconds,
              transfer_seconds, waits {state: seconds}}},
              edges [{from, to, rows, bytes}], data_paths {state: {shared, tcp}},
              rows {start, seconds [], states {name: {lacking [], ready [], leased [], done []}}},
              dropped {reason: rows}, regenerated]
              waits: by the state that was waited for, or `room`; edges: what was read of whom
              rows: at each look, `seconds` after `start` (unix s)
              dropped: rows of the step that were `lost`, or `stale`; so many were generated again
              data_paths: pairs of a client and a warehouse that it reads in its memory, and over TCP
profile       step, rank (of the device), state, path (in the run's folder), seconds (that the state took),
              bytes; [operators [{name, calls, self_seconds}]]     most time of their own first
checkpoint    step, path; [seconds, bytes]
best          step, metric, value: the last evaluation is the best so far, and its checkpoint stays
copied        step, uri; [seconds, bytes]                    the checkpoint is whole on remote storage
reward_error  step, reward, message; [count]
alarm         step, alarm (its guard's name), state (raised, cleared), policy, message; [since (first step of
              what raised it), value, rolled_back_to (step that the run goes on from)]
hang          stage, message, folder ("" where it could not be written); [step, missing [{process, why}],
              waiting [text]]                                a deadline passed, or `rljob stacks` asked
warning       message; [step]
run_finished  status (succeeded, failed, interrupted); [exit_code, message, seconds, step, checkpoint,
              next [text]]

Metrics of a step: reward/mean, reward/std, reward/<name>, reward/errors, reward/error_share,
pass_rate, groups/with_signal, response_length/mean, response_length/p80, response_length/max,
response_length/clipped_share, entropy, kl,
clip_fraction, mismatch/kl, mismatch/max, gradient_norm, learning_rate, loss, tokens_per_second,
response_tokens_per_second, tps_eq5, eta_seconds, staleness, staleness/max, staleness/tokens,
partial_rollout/going_on, partial_rollout/mixed_share, response_length/with_tools,
response_length/with_observations, turns/mean, turns/cut_share, environment/done_share,
environment/error_share, environment/seconds, environment/idle_seconds, tools/idle_seconds,
tools/<name>/calls, tools/<name>/error_share, tools/<name>/timeout_share, tools/<name>/seconds,
difficulty/left_out, difficulty/passed_over, memory/peak_bytes/<device>.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeGuard

logger = logging.getLogger(__name__)

Kind = Literal[
    "run_started", "progress", "phase", "step", "evaluation", "dock", "checkpoint", "best", "copied",
    "reshard", "in_flight", "profile", "resize", "reward_error", "alarm", "hang", "warning", "run_finished",
]  # fmt: skip
Event = dict[str, Any]
Subscriber = Callable[[Event], None]

REQUIRED_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "run_started": {"name": str, "steps": int},
    "progress": {"message": str},
    "phase": {"name": str, "step": int, "start": (int, float), "end": (int, float)},
    "step": {"step": int, "seconds": (int, float), "metrics": dict},
    "evaluation": {"step": int, "accuracy": (int, float), "n": int},
    "dock": {"step": int},
    "reshard": {"step": int, "seconds": (int, float), "peak_bytes": int, "bound_bytes": int},
    "in_flight": {
        "step": int,
        "received_seconds": (int, float),
        "switch_seconds": (int, float),
    },
    "resize": {
        "step": int,
        "from": int,
        "to": int,
        "waited_seconds": (int, float),
        "stopped_seconds": (int, float),
    },
    "profile": {
        "step": int,
        "rank": int,
        "state": str,
        "path": str,
        "seconds": (int, float),
        "bytes": int,
    },
    "checkpoint": {"step": int, "path": str},
    "best": {"step": int, "metric": str, "value": (int, float)},
    "copied": {"step": int, "uri": str},
    "reward_error": {"step": int, "reward": str, "message": str},
    "alarm": {"step": int, "alarm": str, "state": str, "policy": str, "message": str},
    "hang": {"stage": str, "message": str, "folder": str},
    "warning": {"message": str},
    "run_finished": {"status": str},
}
DURABLE_KINDS = frozenset({"checkpoint", "run_finished"})


class EventLog:
    """Appends events to a file and hands each to the subscribers. Never raises once constructed.

    failures: events that could not be written, and subscribers' errors. A resumed run appends
    to the same file. Raises OSError when the file cannot be opened.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.failures = 0
        self._clock = clock
        self._subscribers: list[Subscriber] = []
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._torn = _ends_torn(self._file)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each event after it was written, as a reader would get it."""
        self._subscribers.append(subscriber)

    def write(self, kind: Kind, **fields: object) -> None:
        """Append one event in one write; `checkpoint` and `run_finished` reach the disk at once."""
        event = _plain({"time": self._clock(), "kind": kind} | fields)
        try:
            self._append(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
            if kind in DURABLE_KINDS and self._file is not None:
                os.fsync(self._file)
        except (OSError, ValueError) as error:
            self._fail("event %s not written to %s: %s", kind, self.path, error)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:
                self._fail("display failed at event %s: %s: %r", kind, subscriber, error)

    def close(self) -> None:
        """Close the file; later events reach the subscribers only and count as failures."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: str) -> None:
        if self._file is None:
            raise ValueError("the log is closed")
        data = (("\n" if self._torn else "") + line + "\n").encode("utf-8", errors="replace")
        self._torn = True
        written = os.write(self._file, data)
        if written < len(data):
            raise OSError(f"{written} of {len(data)} bytes written")
        self._torn = False

    def _fail(self, message: str, *arguments: object) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.warning(message, *arguments)
            logger.warning("training goes on; later failures of this log are only counted")


def read_events(path: Path) -> list[Event]:
    """Events of a run in order, as if it had never been interrupted (see `cut_rewound`). Raises OSError."""
    with path.open("rb") as lines:
        return cut_rewound(events_in(lines))


def events_in(lines: Iterable[bytes]) -> Iterator[Event]:
    """Events of a log's lines, one after the other. Skips what is none: torn lines (a killed writer), unknown
    kinds, missing fields."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if is_event(event):
            yield event


def is_event(value: object) -> TypeGuard[Event]:
    """Whether a JSON value is an event of a known kind with all of its required fields."""
    if not isinstance(value, dict) or not isinstance(value.get("time"), (int, float)):
        return False
    required = REQUIRED_FIELDS.get(str(value.get("kind")))
    return required is not None and all(
        isinstance(value.get(name), types) for name, types in required.items()
    )


def cut_rewound(events: Iterable[Event]) -> list[Event]:
    """Without what a resumed run, or one that was rolled back, did again.

    Every `run_started` but the first drops events of later steps than its `resumed_from` (0 where it
    went on from no checkpoint), an `alarm` those later than its `rolled_back_to`; alarms that rolled a run
    back stay. Of a step's `step` and `evaluation` events the last one counts.
    """
    kept: list[Event] = []
    for event in events:
        if event["kind"] == "run_started" and kept:
            kept = _until(kept, event.get("resumed_from") or 0)
            kept = [e for e in kept if e["kind"] != "run_finished"]
        elif "rolled_back_to" in event:
            kept = _until(kept, event["rolled_back_to"])
        kept.append(event)
    last = {(e["kind"], e.get("step")): i for i, e in enumerate(kept)}
    return [
        event
        for i, event in enumerate(kept)
        if event["kind"] not in ("step", "evaluation") or last[event["kind"], event["step"]] == i
    ]


def _until(events: list[Event], step: int) -> list[Event]:
    return [e for e in events if (e.get("step") or 0) <= step or "rolled_back_to" in e]


def _plain(value: object) -> Any:
    """The value as JSON has it: paths as text, numpy and torch scalars as numbers, NaN as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    item = getattr(value, "item", None)
    try:
        return _plain(item()) if callable(item) else str(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)


def _ends_torn(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
