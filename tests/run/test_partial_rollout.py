"""Whole runs whose long samples go on in the next step: every prompt once, through losses and a stop."""

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from whole_runs import (
    DriverHere,
    Finished,
    kill_warehouses,
    run,
    run_while,
    steps_done,
    wait_for_event,
    wait_for_text,
)

from rljob_api.check.load import load_job
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.tokenizer import ByteTokenizer

pytestmark = [pytest.mark.run]

STEPS, PROMPTS, SAMPLES, BUDGET = 8, 8, 4, 3
PARTIAL = {"partialRollout": {"budgetTokens": BUDGET}}  # of 5 or 6 that a right answer has
LEDGER = '''
import json
def reward(prompt, response, answer):
    """Scores as it should, and notes what it was asked."""
    with open({file!r}, "a") as ledger:
        ledger.write(json.dumps([prompt, response]) + "\\n")
    return float(response.strip() == answer)
'''


def noted_rewards(folder: Path) -> list[dict[str, Any]]:
    """A reward whose every question is a line of `ledger.jsonl`."""
    (folder / "ledger.py").write_text(LEDGER.format(file=str(folder / "ledger.jsonl")))
    return [{"name": "noted", "type": "python", "python": {"path": "ledger.py"}}]


def prompts_of(job: Path) -> Counter[str]:
    """How often each prompt is to be answered in the whole run."""
    spec = load_job(job).spec
    source = PromptSource(
        spec.data, batch=spec.batch, tokenizer=ByteTokenizer(), seed=spec.seed, base_dir=job.parent
    )
    texts = Counter(prompt.text for step in range(1, STEPS + 1) for prompt in source.train(step))
    return Counter({text: times * SAMPLES for text, times in texts.items()})


def metrics(finished: Finished, name: str) -> list[float]:
    """One metric of all steps."""
    return [event["metrics"][name] for event in finished.of_kind("step")]


def state_of(finished: Finished) -> dict[str, Any]:
    """The newest checkpoint's."""
    file = Path(finished.of_kind("checkpoint")[-1]["path"]) / "state.json"
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_every_prompt_is_answered_and_trained_once_whatever_steps_its_samples_take(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(
        steps=STEPS,
        checkpoint={},
        flow={"mode": "streaming", **PARTIAL},
        dock={"warehouses": 2},
        rewards=noted_rewards(tmp_path),
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    noted = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert Counter(prompt for prompt, _ in noted) == prompts_of(job)
    assert max(len(response) for _, response in noted) > BUDGET, "no sample needed a second step"
    assert metrics(finished, "partial_rollout/going_on") == [float(PROMPTS)] * (STEPS - 1) + [0.0]
    assert max(metrics(finished, "partial_rollout/mixed_share")) > 0
    shown = [
        r for step in finished.of_kind("step") for g in step["samples"] for r in g["responses"]
    ]
    versions = [response["tokens"]["versions"] for response in shown if "tokens" in response]
    assert max(map(len, versions)) > 1, "no sample shows which weights drew each of its tokens"
    ages = metrics(finished, "staleness"), metrics(finished, "staleness/tokens")
    assert sum(ages[0]) > sum(ages[1]) > 0, "later tokens are drawn by newer weights"
    assert max(metrics(finished, "staleness/max")) in (1, 2, 3)
    trained = [sum(event["staleness"].values()) for event in finished.of_kind("step")]
    assert trained == [PROMPTS * SAMPLES] * STEPS
    state = state_of(finished)
    assert (state["first_new_prompt"], state["open_prompts"]) == (STEPS * PROMPTS, [])


def test_open_prompts_outlive_a_lost_warehouse_and_an_interrupt(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    ahead = {
        "checkpoint": {},
        "accelerator": {"type": "emulated", "devicesPerNode": 2},
        "placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
        "flow": {"mode": "async", "maxStaleness": 3, **PARTIAL},
    }
    job, folder = job_file(steps=200, **ahead), tmp_path / "run"

    def strike(driver: DriverHere) -> None:
        wait_for_event(folder, "step", 3, driver)
        kill_warehouses(driver)  # never empty: a step is ahead
        wait_for_text(folder, "starts over", driver)
        wait_for_event(folder, "step", steps_done(folder) + 3, driver)
        driver.send_signal(signal.SIGINT)

    interrupted = run_while(job, folder, beside=strike)
    left = state_of(interrupted)
    last = left["step"] + 4
    changed = yaml.safe_load(job.read_text())
    changed["spec"]["steps"] = last
    job.write_text(yaml.safe_dump(changed))
    resumed = run(job, folder, "--resume")

    assert interrupted.code == 3, interrupted.output
    assert left["first_new_prompt"] == left["step"] * PROMPTS + len(left["open_prompts"])
    assert len(left["open_prompts"]) >= PROMPTS
    assert resumed.code == 0, resumed.output
    assert [event["step"] for event in resumed.of_kind("step")] == [*range(1, last + 1)]
    assert max(metrics(resumed, "staleness/max")) <= 3
    state = state_of(resumed)
    assert state["step"] == last
    assert state["first_new_prompt"] == last * PROMPTS + len(state["open_prompts"])
