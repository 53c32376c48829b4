"""GRPO steps on rows with pictures: `rljob run` beside TRL's GRPOTrainer, on the same tiny Qwen2.5-VL.

Same model directory with a frozen tower, pictures, prompts in the same order, batch and machine; one process
a side with all cores, in the micro-batch that is faster for it. Then how often the towers see a picture, and
how much of the time that pictures take to be decoded and scaled a step waits for. `--json FILE` writes the
table.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import ROOT
from benchmarks.run.end_to_end import call
from benchmarks.support.environment import make_environment
from benchmarks.support.figures import Figures
from benchmarks.support.runs import events_of
from rljob_api.check.load import read_job
from rljob_runtime.models.tiny_recipe import PROCESSOR, VISION_CONFIG
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.pictures.drawing import draw
from rljob_runtime.task.pictures.processor import processor_of
from rljob_runtime.task.tokenizer import load_tokenizer

TRL = ["trl==1.16.0", "transformers==5.19.0", "pillow==13.0.0"]
FOLDER = ROOT / ".bench" / "vision"
NUM_CORES = len(os.sched_getaffinity(0))
NUM_ROWS, PICTURE_SIDE, SEEN_SIDE = 256, 640, 224
"""Pixels a side as they lie on the disk, and as the model sees them: 64 tokens."""
PROMPTS, SAMPLES, RESPONSE = 16, 8, 32
MICRO_BATCHES = (PROMPTS * SAMPLES, PROMPTS * SAMPLES // 4)
WARM_UP_STEPS = 2
SPECIAL = ("<|end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
TOKEN_KEYS = (
    "eos_token_id", "vision_start_token_id", "image_token_id", "vision_end_token_id", "video_token_id",
)  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|user|>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
REWARD = """
def different(prompt, response, answer):
    return len(set(response)) % 5 / 4
"""
"""So that a random model's samples of a group differ."""
COUNTER = """
import os, sys
if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    from rljob_runtime.models.tower import Tower
    run = Tower._run
    def counted(self, pictures):
        with open(os.environ["PICTURES_SEEN"], "a") as file:
            file.write("." * len(pictures))
        return run(self, pictures)
    Tower._run = counted
"""
"""sitecustomize of a run in which nothing is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """seconds: of each step. waited: of each, until its generation had its prompts."""

    seconds: list[float]
    pictures_seen: int = 0
    waited: tuple[float, ...] = ()

    @property
    def step_seconds(self) -> float:
        """Median over the steps after the warm-up."""
        return statistics.median(self.seconds[WARM_UP_STEPS:])


Side = Callable[[int, int, int], Run]
"""Micro-batch in samples, steps, seed."""


def make_files() -> None:
    """The model with random weights, and rows with a picture each, as JPEG."""
    if (FOLDER / "rows.jsonl").is_file():
        return
    (FOLDER / "pictures").mkdir(parents=True, exist_ok=True)
    make_model(FOLDER / "model")
    (FOLDER / "reward.py").write_text(REWARD)
    lines = []
    for number in range(NUM_ROWS):
        made = draw(Random(number), task="count", level=6, side=PICTURE_SIDE)
        name = f"pictures/{number}.jpg"
        made.image.save(FOLDER / name)
        row = {"prompt": f"<image>{made.question}", "answer": made.answer, "images": [name]}
        lines.append(json.dumps(row) + "\n")
    (FOLDER / "rows.jsonl").write_text("".join(lines))


def make_model(folder: Path) -> None:
    """A Qwen2.5-VL with a tokenizer of letters, as both sides read it."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import AutoConfig, PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

    letters = {sign: i for i, sign in enumerate(sorted(ByteLevel.alphabet()))}
    pieces = Tokenizer(BPE(letters, []))
    pieces.pre_tokenizer = ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        eos_token=SPECIAL[0],
        pad_token=SPECIAL[0],
        additional_special_tokens=list(SPECIAL[1:]),
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    ids = dict(zip(TOKEN_KEYS, fast.convert_tokens_to_ids(list(SPECIAL)), strict=True))
    text = VISION_CONFIG["text_config"] | {"vocab_size": len(fast), "bos_token_id": None}
    text |= {"eos_token_id": ids["eos_token_id"], "pad_token_id": ids["eos_token_id"]}
    config = AutoConfig.for_model(**(VISION_CONFIG | ids | {"text_config": text}))
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    size = {"shortest_edge": 28 * 28, "longest_edge": SEEN_SIDE**2}
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | {"size": size}))


def our_job(micro_batch: int, steps: int, seed: int) -> dict[str, Any]:
    """The RLJob of one run."""
    reward = {"path": str(FOLDER / "reward.py"), "function": "different"}
    spec = {
        "seed": seed,
        "steps": steps,
        "model": {"path": str(FOLDER / "model"), "vision": "frozen"},
        "data": {"jsonl": {"path": str(FOLDER / "rows.jsonl")}, "chat": True},
        "rewards": [{"name": "different", "type": "python", "python": reward}],
        "batch": {
            "globalBatchSize": PROMPTS,
            "samplesPerPrompt": SAMPLES,
            "maxPromptLength": 128,
            "maxResponseLength": RESPONSE,
            "microBatchSize": micro_batch // SAMPLES,
        },
        "update": {"optimizer": {"learningRate": 1e-5}},
        "flow": {"mode": "sync"},
        "accelerator": {"type": "emulated", "devicesPerNode": 1},
    }
    named = {"apiVersion": "rljob.io/v1beta1", "kind": "RLJob", "metadata": {"name": "vision"}}
    return named | {"spec": spec}


def run_rljob(micro_batch: int, steps: int, seed: int) -> Run:
    """`rljob run` in processes of its own; what it did is read from its events."""
    with tempfile.TemporaryDirectory() as scratch:
        events = events_of(our_job(micro_batch, steps, seed), Path(scratch), "run")
    done = {event["step"]: event for event in events if event["kind"] == "step"}
    waited = {
        event["step"]: event["waited_seconds"]
        for event in events
        if event["kind"] == "phase" and event["name"] == "generate"
    }
    return Run(
        seconds=[done[step]["seconds"] for step in sorted(done)],
        waited=tuple(waited[step] for step in sorted(done)),
    )


def run_trl(micro_batch: int, steps: int, seed: int) -> Run:
    """TRL in its own environment, on the prompts that `rljob run` draws."""
    python = make_environment("trl-vision", TRL) / "python"
    source = prompt_source(seed)
    task = {
        "model": str(FOLDER / "model"),
        "rows": [row_of(prompt) for step in range(1, steps + 1) for prompt in source.train(step)],
        "steps": steps,
        "prompts_per_step": PROMPTS,
        "samples_per_prompt": SAMPLES,
        "max_response_length": RESPONSE,
        "learning_rate": 1e-5,
        "micro_batch": micro_batch,
        "threads": NUM_CORES,
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as scratch:
        file, result = Path(scratch) / "task.json", Path(scratch) / "result.json"
        file.write_text(json.dumps(task))
        script = str(Path(__file__).with_name("trl_vision.py"))
        settings = {"OMP_NUM_THREADS": str(NUM_CORES), "PYTHONPATH": str(ROOT)}
        call([str(python), script, str(file), str(result)], **settings)
        told = json.loads(result.read_text())
    return Run(seconds=told["seconds"], pictures_seen=told["pictures_seen"])


def row_of(prompt: Any) -> dict[str, str]:
    """A prompt as TRL's side reads it."""
    (picture,) = prompt.pictures
    text = prompt.text.removeprefix("<image>")
    return {"text": text, "answer": prompt.answer, "image": str(FOLDER / picture.content)}


def prompt_source(seed: int) -> PromptSource:
    """The prompts that `rljob run` draws."""
    spec = read_job(our_job(MICRO_BATCHES[0], 1, seed)).spec
    tokenizer = load_tokenizer(FOLDER / "model")
    return PromptSource(
        spec.data,
        batch=spec.batch,
        tokenizer=tokenizer,
        seed=seed,
        base_dir=FOLDER,
        processor=processor_of(spec, FOLDER / "model", tokenizer),
    )


def preparation_seconds(steps: int, seed: int) -> float:
    """Of a step's pictures, in a process that does nothing else: the median."""
    source, found = prompt_source(seed), []
    for step in range(1, steps + 1):
        started = time.perf_counter()
        source.train(step)
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def pictures_seen(steps: int) -> int:
    """By the towers of a run of ours, whose workers are forked from where the counter is."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "sitecustomize.py").write_text(COUNTER)
        told = folder / "seen"
        before = dict(os.environ)
        os.environ |= {"PYTHONPATH": scratch, "PICTURES_SEEN": str(told)}
        try:
            events_of(our_job(MICRO_BATCHES[0], steps, 1), folder, "run", "--local")
        finally:
            os.environ.clear()
            os.environ.update(before)
        return told.stat().st_size


def measure(*, steps: int, repetitions: int, micro_batches: Sequence[int]) -> Figures:
    """Both sides in turns, then what ours waits for and sees."""
    sides: tuple[Side, ...] = (run_rljob, run_trl)
    best = {side: fastest(side, micro_batches) for side in sides}
    runs: dict[Side, list[Run]] = {side: [] for side in sides}
    for seed in range(1, repetitions + 1):
        for side, done in runs.items():
            done.append(side(best[side], steps, seed))
            print(f"{side.__name__} seed {seed}: {done[-1].step_seconds:.2f} s a step", flush=True)
    ours, theirs = ([run.step_seconds for run in done] for done in runs.values())
    what, found = f"{PROMPTS} pictures × {SAMPLES} samples", Figures()
    for name, seconds in {"rljob": ours, "TRL": theirs}.items():
        spread = f"{min(seconds):.3g}–{max(seconds):.3g}"
        found.add(f"{name}: a step of {what} ({spread})", statistics.median(seconds), "s")
    gain = statistics.median(theirs) / statistics.median(ours)
    found.add("TRL's seconds by rljob's", gain, "×", least=2.0)
    prepared = preparation_seconds(steps, 1)
    waited = statistics.median(s for run in runs[run_rljob] for s in run.waited[WARM_UP_STEPS:])
    found.add("rljob: decoding and scaling a step's pictures", 1000 * prepared, "ms")
    found.add("rljob: what generation waits for them, with the dock", 1000 * waited, "ms")
    found.add("rljob: of the preparation hidden", 100 * (1 - waited / prepared), "%", least=80.0)
    counted = WARM_UP_STEPS + 1
    seen = pictures_seen(counted) / (counted * PROMPTS)
    found.add("rljob: how often the tower sees a picture in a step", seen, "×", limit=1.0)
    seen = statistics.median(run.pictures_seen / (steps * PROMPTS) for run in runs[run_trl])
    found.add("TRL: how often the tower sees a picture in a step", seen, "×")
    return found


def fastest(side: Side, micro_batches: Sequence[int]) -> int:
    """The micro-batch with the shortest step, by one run of each."""
    if len(micro_batches) == 1:
        return micro_batches[0]
    return min(micro_batches, key=lambda size: side(size, WARM_UP_STEPS + 2, 1).step_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, one repetition")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    make_files()
    make_environment("trl-vision", TRL)
    if arguments.quick:
        found = measure(steps=4, repetitions=1, micro_batches=MICRO_BATCHES[1:])
    else:
        found = measure(steps=12, repetitions=3, micro_batches=MICRO_BATCHES)
    if arguments.json:
        found.write(arguments.json, packages=("rljob", "torch", "ray", "transformers"), facts={})


if __name__ == "__main__":
    main()
