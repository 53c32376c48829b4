"""Whole GRPO training steps a second: `rljob run` beside TRL's GRPOTrainer, on the same work.

Same model directory, prompts in the same order, held-out prompts, batch, algorithm and machine;
each side in its fastest layout. Prints a table; `--json FILE` writes it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.run import spelling
from benchmarks.support.environment import make_environment
from benchmarks.support.results import Result, report, summarize
from rljob_api.spec.rljob import RLJob
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.tokenizer import ByteTokenizer

TRL = ["trl==1.16.0"]
FOLDER = ROOT / ".bench" / "spelling"
NUM_CORES = len(os.sched_getaffinity(0))
WARM_UP_STEPS = 5
SAMPLES = spelling.PROMPTS_PER_STEP * spelling.SAMPLES_PER_PROMPT
LONGEST_TOKENS = SAMPLES * (spelling.MAX_PROMPT_LENGTH + spelling.MAX_RESPONSE_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a side uses the cores: processes that train, samples of one backward pass of each."""

    processes: int
    micro_batch: int

    def __str__(self) -> str:
        return (
            f"{self.processes} × {NUM_CORES // self.processes} threads, {self.micro_batch} samples"
        )


LAYOUTS = (
    Layout(processes=1, micro_batch=SAMPLES),
    Layout(processes=NUM_CORES, micro_batch=SAMPLES // NUM_CORES),
    Layout(processes=1, micro_batch=SAMPLES // 4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run. accuracy: (seconds trained, share right), from before the first step on."""

    seconds: list[float]
    generate_seconds: list[float]
    response_tokens: list[float]
    accuracy: list[tuple[float, float]]

    @property
    def step_seconds(self) -> float:
        """Median over the steps after the warm-up."""
        return statistics.median(self.seconds[WARM_UP_STEPS:])

    @property
    def response_rate(self) -> float:
        """True response tokens a second."""
        return sum(self.response_tokens[WARM_UP_STEPS:]) / sum(self.seconds[WARM_UP_STEPS:])

    @property
    def longest_rate(self) -> float:
        """The paper's Eq. 5 for the whole machine: every sample counts as the longest."""
        return LONGEST_TOKENS / self.step_seconds

    @property
    def generate_share(self) -> float:
        """Share of the steps' time that generation takes."""
        return sum(self.generate_seconds[WARM_UP_STEPS:]) / sum(self.seconds[WARM_UP_STEPS:])

    def seconds_to(self, accuracy: float) -> float | None:
        """Training seconds until two evaluations in a row average `accuracy`."""
        for (_, before), (seconds, now) in zip(self.accuracy, self.accuracy[1:], strict=False):
            if (before + now) / 2 >= accuracy:
                return seconds
        return None


Side = Callable[[Path, Layout, int, int, int], Run]


def run_rljob(model: Path, layout: Layout, steps: int, evaluate_every: int, seed: int) -> Run:
    """`rljob run` in a process of its own; what it did is read from its events."""
    job = our_job(model, layout, steps=steps, evaluate_every=evaluate_every, seed=seed)
    with tempfile.TemporaryDirectory() as scratch:
        file, folder = Path(scratch) / "job.yaml", Path(scratch) / "run"
        file.write_text(yaml.safe_dump(job))
        program = Path(sys.executable).with_name("rljob")
        call([str(program), "run", str(file), "--output", str(folder)])
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    done = [event for event in events if event["kind"] == "step"]
    trained = {0: 0.0}
    for event in done:
        trained[event["step"]] = trained[event["step"] - 1] + event["seconds"]
    return Run(
        seconds=[event["seconds"] for event in done],
        generate_seconds=[event["phases"]["generate"] for event in done],
        response_tokens=[e["metrics"]["response_length/mean"] * SAMPLES for e in done],
        accuracy=[
            (trained[event["step"]], event["accuracy"])
            for event in events
            if event["kind"] == "evaluation"
        ],
    )


def run_trl(model: Path, layout: Layout, steps: int, evaluate_every: int, seed: int) -> Run:
    """TRL in its own environment, on the prompts that `rljob run` draws."""
    programs = make_environment("trl", TRL)
    source = prompt_source(model, steps=steps, seed=seed)
    threads = NUM_CORES // layout.processes
    task = {
        "model": str(model),
        "prompts": [question(p) for step in range(1, steps + 1) for p in source.train(step)],
        "heldout": [question(prompt) for prompt in source.heldout()],
        "steps": steps,
        "prompts_per_step": spelling.PROMPTS_PER_STEP,
        "samples_per_prompt": spelling.SAMPLES_PER_PROMPT,
        "max_response_length": spelling.MAX_RESPONSE_LENGTH,
        "learning_rate": spelling.LEARNING_RATE,
        "micro_batch": layout.micro_batch,
        "threads": threads,
        "processes": layout.processes,
        "evaluate_every": evaluate_every,
        "seed": seed,
    }
    launcher = [str(programs / "python")]
    if layout.processes > 1:
        launcher = [str(programs / "torchrun"), "--standalone", "--nproc-per-node"]
        launcher.append(str(layout.processes))
    with tempfile.TemporaryDirectory() as scratch:
        file, result = Path(scratch) / "task.json", Path(scratch) / "result"
        file.write_text(json.dumps(task))
        script = Path(__file__).with_name("trl_grpo.py")
        call([*launcher, str(script), str(file), str(result)], OMP_NUM_THREADS=str(threads))
        parts = [
            json.loads(result.with_name(f"result.{rank}").read_text())
            for rank in range(layout.processes)
        ]
    return Run(
        seconds=parts[0]["seconds"],
        generate_seconds=parts[0]["generate_seconds"],
        response_tokens=[
            float(sum(counts))
            for counts in zip(*(part["response_tokens"] for part in parts), strict=True)
        ],
        accuracy=[(seconds, share) for seconds, share in parts[0]["accuracy"]],
    )


def our_job(
    model: Path, layout: Layout, *, steps: int, evaluate_every: int, seed: int
) -> dict[str, Any]:
    """The RLJob of one run. Evaluation draws as many held-out prompts on both sides."""
    evaluation = {"prompts": spelling.HELD_OUT, "every": evaluate_every}
    return spelling.job(
        model,
        FOLDER / "words.jsonl",
        steps=steps,
        seed=seed,
        batch={"microBatchSize": layout.micro_batch // spelling.SAMPLES_PER_PROMPT},
        accelerator={"type": "emulated", "devicesPerNode": layout.processes},
        **({"evaluation": evaluation} if evaluate_every else {}),
    )


def prompt_source(model: Path, *, steps: int, seed: int) -> PromptSource:
    """The prompts that `rljob run` draws for such a job."""
    layout = LAYOUTS[0]
    job = RLJob.model_validate(our_job(model, layout, steps=steps, evaluate_every=steps, seed=seed))
    return PromptSource(
        job.spec.data,
        batch=job.spec.batch,
        tokenizer=ByteTokenizer(),
        seed=seed,
        base_dir=Path("/"),
        held_out=spelling.HELD_OUT,
    )


def question(prompt: Any) -> dict[str, str]:
    """A prompt as TRL's dataset has it."""
    return {"prompt": prompt.text, "answer": prompt.answer}


def call(command: list[str], **environment: str) -> None:
    """Run a side; its output is shown only when it fails."""
    done = subprocess.run(
        command,
        env=os.environ | {"HF_HUB_OFFLINE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")


def fastest(side: Side, model: Path, layouts: Sequence[Layout], steps: int) -> Layout:
    """The layout with the shortest step, by one run of each."""
    if len(layouts) == 1:
        return layouts[0]
    return min(layouts, key=lambda layout: side(model, layout, steps, 0, 1).step_seconds)


def throughput(
    size: str, *, layouts: Sequence[Layout], steps: int, repetitions: int
) -> list[Result]:
    """Rates of both sides on one model, in turns."""
    model = FOLDER / size
    spelling.make_model(model, size=size, words=FOLDER / "words.jsonl")
    sides: tuple[Side, ...] = (run_rljob, run_trl)
    best = {side: fastest(side, model, layouts, WARM_UP_STEPS + 5) for side in sides}
    runs: dict[Side, list[Run]] = {side: [] for side in sides}
    for seed in range(1, repetitions + 1):
        for side, done in runs.items():
            done.append(side(model, best[side], steps, 0, seed))
    for side, done in runs.items():
        share = statistics.median(run.generate_share for run in done)
        print(f"{side.__name__} {size}: layout {best[side]}, generation {share:.0%} of a step")
    figures: dict[str, Callable[[Run], float]] = {
        "response tokens/s": lambda run: run.response_rate,
        "tokens/s by Eq. 5 (longest)": lambda run: run.longest_rate,
    }
    return [
        summarize(
            f"{size} {name}",
            ours=[figure(run) for run in runs[run_rljob]],
            peers={"TRL": [figure(run) for run in runs[run_trl]]},
            unit="tokens/s",
            better="higher",
            target=1.5,
        )
        for name, figure in figures.items()
    ]


def time_to_accuracy(size: str, *, gain: float, steps: int, repetitions: int) -> Result:
    """Training seconds until the held-out accuracy has risen by `gain`, evaluations left out."""
    model = FOLDER / size
    spelling.make_model(model, size=size, words=FOLDER / "words.jsonl")
    sides: dict[Side, list[float]] = {run_rljob: [], run_trl: []}
    for seed in range(1, repetitions + 1):
        for side, seconds in sides.items():
            run = side(model, LAYOUTS[1], steps, 5, seed)
            seconds.append(run.seconds_to(run.accuracy[0][1] + gain) or float("inf"))
    return summarize(
        f"{size} seconds to +{gain * 100:.0f} points of held-out accuracy",
        ours=sides[run_rljob],
        peers={"TRL": sides[run_trl]},
        unit="s",
        better="lower",
        target=1.5,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small model, one repetition")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    make_environment("trl", TRL)
    spelling.write_words(FOLDER / "words.jsonl")
    if arguments.quick:
        results = throughput("0.8M", layouts=LAYOUTS[1:2], steps=12, repetitions=1)
    else:
        results = [
            *throughput("0.8M", layouts=LAYOUTS[:2], steps=30, repetitions=3),
            *throughput("4.8M", layouts=LAYOUTS[1:2], steps=14, repetitions=3),
            time_to_accuracy("0.8M", gain=0.1, steps=50, repetitions=3),
        ]
    report(results, packages=("rljob", "torch", "ray"), file=arguments.json)


if __name__ == "__main__":
    main()
