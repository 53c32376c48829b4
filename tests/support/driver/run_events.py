"""A realistic run as events, made by a seeded generator: what a driver writes, without training."""

import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rljob_runtime.record import event_types
from rljob_runtime.record.events import parse_event, plain, read_events
from rljob_runtime.report.display.history import RunHistory

Event = dict[str, Any]
WORDS = (
    "lantern",
    "orchid",
    "velvet",
    "copper",
    "glacier",
    "harvest",
    "meadow",
    "puzzle",
    "saddle",
)


def event_of(told: Mapping[str, Any]) -> event_types.Event:
    """The event of a line's fields; of time 0 where they have none."""
    event = parse_event(json.dumps(plain({"time": 0.0, **told})))
    assert event is not None, f"no event: {told}"
    return event


def told_in(path: Path) -> list[Any]:
    """A run's events, whose kinds the test knows."""
    return list(read_events(path))


def history_of(events: Iterable[Event]) -> RunHistory:
    """The history of lines' fields."""
    return RunHistory.of(map(event_of, events))


def make_events(
    *,
    steps: int = 140,
    total_steps: int | None = None,
    every: int | None = 20,
    devices: int = 2,
    seed: int = 7,
    finished: str | None = "succeeded",
    start: float = 1_760_000_000.0,
) -> list[Event]:
    """Events of a run of `steps` steps; `every` None leaves evaluations out."""
    rng = random.Random(seed)
    total = total_steps or steps
    events: list[Event] = [_started(start, total, devices)]
    now = start
    for warm in range(0, 200, 40):
        now += 2.5
        accuracy = 0.5 * warm / 200
        message = f"warming up the tiny model: step {warm}, accuracy {accuracy:.2f}"
        events.append({"time": now, "kind": "progress", "message": message, "fraction": warm / 200})
    if every:
        now += 1.2
        events.append(_evaluation(now, 0, 0.504))
    for step in range(1, steps + 1):
        skill = 0.5 + 0.27 * (1 - math.exp(-2.2 * step / total))
        step_events, now = _step(rng, step, total, skill, devices, now)
        events += step_events
        if every and (step % every == 0 or step == total):
            now += 0.9
            events.append(_evaluation(now, step, skill - 0.01 + rng.gauss(0, 0.012)))
        if step % 50 == 0 or step == total:
            now += 0.05
            path = f"runs/spell-backward-grpo/checkpoints/step-{step}"
            events.append(
                {"time": now, "kind": "checkpoint", "step": step, "path": path, "seconds": 0.05}
            )
    if finished:
        events.append(
            {
                "time": now + 0.1,
                "kind": "run_finished",
                "status": finished,
                "message": "" if finished == "succeeded" else "worker 1 vanished during update",
                "seconds": now - start,
                "step": steps,
                "checkpoint": f"runs/spell-backward-grpo/checkpoints/step-{steps}",
                "next": [
                    "rljob run examples/chain-sum.yaml trains a real language model",
                    "docs/spec.md explains every field",
                ],
            }
        )
    return events


def _started(start: float, steps: int, devices: int) -> Event:
    return {
        "time": start,
        "kind": "run_started",
        "name": "spell-backward-grpo",
        "model": "tiny",
        "algorithm": "grpo",
        "dataset": "spell_backward",
        "devices": devices,
        "placement": "colocated",
        "rollout_engine": "torch",
        "update_engine": "torch",
        "steps": steps,
        "global_batch_size": 16,
        "samples_per_prompt": 8,
        "seed": 1,
        "machine": {"system": "Linux", "processor": "x86_64", "cores": "2", "memory": "24 GiB"},
        "versions": {"rljob": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "ray": "2.60.0"},
    }


def _evaluation(now: float, step: int, accuracy: float) -> Event:
    return {
        "time": now,
        "kind": "evaluation",
        "step": step,
        "accuracy": accuracy,
        "stderr": math.sqrt(accuracy * (1 - accuracy) / 512),
        "reward": accuracy + 0.02,
        "n": 512,
        "samples": [],
        "seconds": 0.9,
    }


def _step(
    rng: random.Random, step: int, total: int, skill: float, devices: int, now: float
) -> tuple[list[Event], float]:
    events: list[Event] = []
    end = now
    for device in range(devices):
        at = now + rng.uniform(0, 0.01)
        generate_end = at + rng.uniform(0.18, 0.26)
        update_start = now + 0.33
        spans = [
            ("generate", "rollout", at, generate_end),
            ("reference", "reference", generate_end, generate_end + 0.03),
            ("update", "update", update_start, update_start + rng.uniform(0.10, 0.14)),
        ]
        spans.append(("sync", "update", spans[-1][3], spans[-1][3] + 0.02))
        for name, role, begin, finish in spans:
            events.append(_phase(step, name, role, device, begin, finish))
        end = max(end, spans[-1][3])
    for burst in range(4):
        begin = now + 0.08 + 0.055 * burst
        events.append(
            _phase(step, "reward", "reward", None, begin, begin + rng.uniform(0.02, 0.05))
        )
    spread = math.sqrt(skill * (1 - skill))
    done = step / total
    metrics = {
        "reward/error_share": 0.0,
        "reward/mean": skill + 0.02 + rng.gauss(0, 0.03),
        "reward/std": spread + rng.gauss(0, 0.01),
        "reward/spelling": skill + rng.gauss(0, 0.03),
        "reward/format": 0.9 + 0.09 * done,
        "reward/errors": 0.0,
        "pass_rate": skill + rng.gauss(0, 0.03),
        "groups/with_signal": 0.85 - 0.3 * done + rng.gauss(0, 0.04),
        "response_length/mean": 7.1 + rng.gauss(0, 0.15),
        "response_length/clipped_share": max(0.0, 0.03 * (1 - done) + rng.gauss(0, 0.004)),
        "entropy": 0.42 - 0.2 * done + rng.gauss(0, 0.01),
        "kl": 0.012 * done + abs(rng.gauss(0, 0.0005)),
        "clip_fraction": abs(rng.gauss(0.004, 0.002)),
        "mismatch/kl": abs(rng.gauss(2e-7, 1e-7)),
        "mismatch/max": abs(rng.gauss(6e-6, 1e-6)),
        "gradient_norm": 0.8 + rng.gauss(0, 0.12),
        "learning_rate": 3e-4 * min(1.0, step / 10),
        "loss": rng.gauss(0, 0.01),
        "tokens_per_second": 5200 + rng.gauss(0, 250),
        "tps_eq5": 9100 + rng.gauss(0, 300),
        "staleness": 0.0,
        **{f"memory/peak_bytes/{d}": 61e6 + 2e6 * d + rng.gauss(0, 1e5) for d in range(devices)},
    }
    events.append(
        {
            "time": end,
            "kind": "step",
            "step": step,
            "seconds": end - now,
            "metrics": metrics,
            "staleness": {"0": 128},
            "samples": [_group(rng, skill) for _ in range(3)],
        }
    )
    events.append(_dock(rng, step, now, end))
    return events, end


def _phase(step: int, name: str, role: str, device: int | None, start: float, end: float) -> Event:
    event = {"time": end, "kind": "phase", "name": name, "step": step, "start": start, "end": end}
    return event | {"role": role, "device": device}


def _dock(rng: random.Random, step: int, start: float, now: float) -> Event:
    sizes = {"generate": 160, "reference": 90, "reward": 120, "update": 300}
    before = {"generate": "feed", "reference": "generate", "reward": "generate", "update": "reward"}
    states = {}
    for name, size in sizes.items():
        wait = abs(rng.gauss(0.02, 0.01))
        states[name] = {
            "rows": 128,
            "bytes_read": 128 * size,
            "bytes_written": 128 * size // 2,
            "wait_seconds": wait,
            "waits": {before[name]: 0.9 * wait},
        }
    edges = [
        {"from": before[name], "to": name, "rows": 128, "bytes": 128 * size}
        for name, size in sizes.items()
    ]
    seconds = [0.1 * i for i in range(5)]
    course = {"lacking": [0] * 5, "ready": [128, 90, 0, 0, 0], "leased": [0, 38, 40, 8, 0]}
    rows = {
        "start": start - 0.05,
        "seconds": seconds,
        "states": {name: {**course, "done": [0, 0, 88, 120, 128]} for name in sizes},
    }
    return {
        "time": now,
        "kind": "dock",
        "step": step,
        "warehouses": [{"index": 0, "peak_bytes": 128 * 700, "capacity_bytes": 2**30}],
        "states": states,
        "edges": edges,
        "data_paths": {name: {"shared": 2, "tcp": 0} for name in states},
        "rows": rows,
    }


def _group(rng: random.Random, skill: float) -> Event:
    word = rng.choice(WORDS)
    responses = []
    for _ in range(8):
        letters = list(word[::-1])
        good = rng.random() < skill
        if not good:
            i = rng.randrange(len(letters) - 1)
            letters[i], letters[i + 1] = letters[i + 1], letters[i]
        text = "".join(letters)
        correct = float(text == word[::-1])
        parts = {"spelling": correct, "format": 1.0}
        responses.append(
            {"text": text, "reward": correct + 0.1, "parts": parts, "length": len(text) + 1}
        )
    prompt = f"Spell this word backward (example: sun -> nus): {word}"
    return {"prompt": prompt, "answer": word[::-1], "responses": responses}
