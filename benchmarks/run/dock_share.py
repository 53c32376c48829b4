"""What share of a GRPO step is the dock: small models, a larger one, and long responses.

Of each step the seconds that all workers spent in reads, writes and puts, and in claims beyond what they
waited for other states, whether or not others worked meanwhile; of these steps, processor time of the
dock's own processes. Jobs are synchronous, on one emulated device, so that what is not work is waiting.
Models but the first are random; that of the long responses never ends one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
import torch
import yaml

from benchmarks import ROOT
from benchmarks.support.figures import Figures
from benchmarks.support.models import SIZES
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import hf_config
from rljob_runtime.models.weights import save_hf
from rljob_runtime.task.tokenizer import EOS_ID, save_byte_tokenizer

REWARD = """
def reward(prompt, response, answer):
    return len(set(response)) % 5 / 4
"""
"""What a random model gets, so that there is something to learn."""
WARM_UP_STEPS = 1
LOOK_SECONDS = 0.2
UNLIKELY = 50.0
WANTED = 3.0
"""Percent of a step with long responses, at most."""


def jobs(quick: bool) -> dict[str, dict[str, Any]]:
    """By name: steps, model and batch."""
    long = {"globalBatchSize": 2, "samplesPerPrompt": 64, "maxPromptLength": 16}
    length = 128 if quick else 4096 - 16
    found: dict[str, dict[str, Any]] = {
        "quickstart, 0.8M": {"steps": 3 if quick else 20},
        "quickstart's batch, 24.7M": {"steps": 4, "size": "24.7M"},
        f"2 × 64 samples of {length:,} tokens, 0.8M": {
            "steps": 2,
            "size": "0.8M",
            "batch": {**long, "maxResponseLength": length, "microBatchSize": 1},
        },
    }
    return {name: job for name, job in found.items() if not quick or job.get("size") != "24.7M"}


def spec_of(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The quickstart with what the job changes."""
    whole: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    spec = whole["spec"]
    spec.pop("evaluation")
    spec |= {"steps": job["steps"], "checkpoint": {}}
    spec["accelerator"]["devicesPerNode"] = 1
    spec["batch"] |= job.get("batch", {})
    if "size" in job:
        spec["model"] = {"path": str(endless(folder / job["size"], job["size"]))}
        (folder / "any.py").write_text(REWARD)
        spec["rewards"] = [{"name": "any", "type": "python", "python": {"path": "any.py"}}]
        spec["algorithm"]["params"] = {}
    return whole


def endless(folder: Path, size: str) -> Path:
    """A random model of bytes whose last token is next to impossible: a hidden channel that nothing writes to
    is the same for all, and that token's embedding is far below it."""
    if not folder.exists():
        decoder = Decoder(SIZES[size])
        decoder.initialize(0)
        with torch.no_grad():
            for name, weight in decoder.named_hf_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weight[0] = 0.0
                elif name.endswith("embed_tokens.weight"):
                    weight[:, 0] = 1.0
                    weight[EOS_ID, 0] = -UNLIKELY
        save_hf(decoder.named_hf_parameters(), folder=folder, config=hf_config(SIZES[size]))
        save_byte_tokenizer(folder)
    return folder


def run(job: dict[str, Any], folder: Path) -> tuple[float, float, float]:
    """Of its steps but the first: seconds, seconds in the dock; and the dock's share of processor time."""
    name = str(time.monotonic_ns())
    file, output = folder / f"{name}.yaml", folder / name
    file.write_text(yaml.safe_dump(spec_of(job, folder)))
    command = [str(Path(sys.executable).with_name("rljob")), "run", str(file)]
    looks: list[tuple[float, dict[tuple[int, bool], float]]] = []
    with subprocess.Popen(
        [*command, "--output", str(output)], stdout=subprocess.DEVNULL
    ) as running:
        while running.poll() is None:
            looks.append((time.time(), dict(processor_time(psutil.Process(running.pid)))))
            time.sleep(LOOK_SECONDS)
    if running.returncode:
        raise SystemExit(f"the run ended with {running.returncode}: {output}")
    with (output / "events.jsonl").open() as lines:
        events = [json.loads(line) for line in lines]
    done = [event for event in events if event["kind"] == "step"]
    steps = done[WARM_UP_STEPS:]
    moved = {event["step"]: event for event in events if event["kind"] == "dock"}
    seconds = mean(step["seconds"] for step in steps)
    in_dock = mean(
        state.get("transfer_seconds", 0.0)
        + max(0.0, state.get("wait_seconds", 0.0) - sum(state.get("waits", {}).values()))
        for step in steps
        for state in [_summed(moved[step["step"]]["states"])]
    )
    began, ended = (event["time"] for event in (done[WARM_UP_STEPS - 1], done[-1]))
    first = next(used for at, used in looks if at > began)
    last = [used for at, used in looks if at <= ended][-1]
    grown = {process: seconds - first.get(process, 0.0) for process, seconds in last.items()}
    of_dock = sum(seconds for (_, of_dock), seconds in grown.items() if of_dock)
    return seconds, in_dock, of_dock / sum(grown.values())


def _summed(states: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All states' figures."""
    total: dict[str, Any] = {"waits": {}}
    for number, state in enumerate(states.values()):
        for name in ("transfer_seconds", "wait_seconds"):
            total[name] = total.get(name, 0.0) + state.get(name, 0.0)
        total["waits"] |= {(number, who): s for who, s in state.get("waits", {}).items()}
    return total


def processor_time(run: psutil.Process) -> Iterator[tuple[tuple[int, bool], float]]:
    """Of each process of the run so far: its number, whether it is the dock's, seconds."""
    for process in [run, *run.children(recursive=True)]:
        try:
            title = " ".join(process.cmdline()) or process.name()
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        yield (
            (process.pid, "Warehouse" in title or "Controller" in title),
            times.user + times.system,
        )


def main() -> None:
    """Run all jobs and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few short steps, small models")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    figures = Figures()
    with tempfile.TemporaryDirectory() as place:
        for name, job in jobs(options.quick).items():
            seconds, in_dock, of_dock = run(job, Path(place))
            limit = WANTED if "batch" in job and not options.quick else None
            figures.add(f"{name}: a step", seconds, "s")
            figures.add(f"{name}: of it in the dock", 100 * in_dock / seconds, "%", limit=limit)
            figures.add(f"{name}: the dock's processes, of all processor time", 100 * of_dock, "%")
    if options.json is not None:
        figures.write(options.json, packages=["rljob", "torch", "ray"], facts={})


if __name__ == "__main__":
    main()
