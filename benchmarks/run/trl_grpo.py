"""GRPO by TRL's GRPOTrainer, timed. Run by `end_to_end.py` inside TRL's own environment.

Reads a task (JSON file, the `Task` below), trains, and writes a `Timing` (JSON file) for each
process: RESULT.0, RESULT.1, ... TRL gets its best case on a CPU: no logging, saving, checkpointing
of activations or evaluation within the clock. torchrun starts several processes.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """model: directory with a tokenizer. micro_batch: sequences of one backward pass of one process."""

    model: str
    steps: int
    prompts_per_step: int
    samples_per_prompt: int
    max_response_length: int
    learning_rate: float
    micro_batch: int
    threads: int
    seed: int
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Training):
    """prompts, heldout: lists of {"prompt", "answer"}. evaluate_every: 0 is never."""

    prompts: list[dict[str, str]]
    heldout: list[dict[str, str]]
    evaluate_every: int


@dataclass(slots=True, kw_only=True)
class Timing:
    """Of one process, per step: seconds by the wall and of CPU, true tokens of its samples.

    accuracy: (seconds trained, share right) at each evaluation.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    generate_seconds: list[float] = field(default_factory=list)
    response_tokens: list[int] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    accuracy: list[tuple[float, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


class Clock(TrainerCallback):  # type: ignore[misc]
    """Times each step, without the evaluations between them."""

    def __init__(self, timing: Timing, evaluate: Callable[[], float], every: int) -> None:
        self._timing = timing
        self._evaluate = evaluate
        self._every = every
        self._started = self._cpu_started = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._accuracy()
        self._start()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._timing.seconds.append(time.perf_counter() - self._started)
        self._timing.cpu_seconds.append(time.process_time() - self._cpu_started)
        if self._every and state.global_step % self._every == 0:
            self._accuracy()
        self._start()

    def _start(self) -> None:
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def _accuracy(self) -> None:
        if self._every:
            self._timing.accuracy.append((sum(self._timing.seconds), self._evaluate()))


def main(task_file: str, result_file: str) -> None:
    task = Task(**json.loads(Path(task_file).read_text()))
    torch.set_num_threads(task.threads)
    tokenizer = AutoTokenizer.from_pretrained(task.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.float32)
    timing = Timing(versions=versions_there())
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=_exact_match(tokenizer, timing),
        args=config_of(task),
        train_dataset=Dataset.from_list(task.prompts),
        processing_class=tokenizer,
        callbacks=[Clock(timing, lambda: _accuracy(model, tokenizer, task), task.evaluate_every)],
    )
    time_generation(trainer, timing)
    trainer.train()
    rank = os.environ.get("RANK", "0")
    Path(f"{result_file}.{rank}").write_text(json.dumps(asdict(timing)))


def config_of(task: Training) -> GRPOConfig:
    samples = task.prompts_per_step * task.samples_per_prompt // task.processes
    return GRPOConfig(
        output_dir="/nonexistent",  # nothing is saved
        max_steps=task.steps,
        per_device_train_batch_size=task.micro_batch,
        gradient_accumulation_steps=samples // task.micro_batch,
        num_generations=task.samples_per_prompt,
        max_completion_length=task.max_response_length,
        learning_rate=task.learning_rate,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        seed=task.seed,
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _exact_match(tokenizer: PreTrainedTokenizerBase, timing: Timing) -> Callable[..., list[float]]:
    def exact_match(
        prompts: list[str],
        completions: list[str],
        completion_ids: list[list[int]],
        answer: list[str],
        **_: Any,
    ) -> list[float]:
        rewards = [
            float(text.strip() == right) for text, right in zip(completions, answer, strict=True)
        ]
        timing.response_tokens.append(sum(map(len, completion_ids)))
        timing.prompt_tokens.append(sum(map(len, tokenizer(prompts)["input_ids"])))
        timing.reward.append(sum(rewards) / len(rewards))
        return rewards

    return exact_match


def time_generation(trainer: GRPOTrainer, timing: Timing) -> None:
    generate = trainer._generate_single_turn

    def timed(*arguments: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        result = generate(*arguments, **keywords)
        timing.generate_seconds.append(time.perf_counter() - started)
        return result

    trainer._generate_single_turn = timed


def _accuracy(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, task: Task) -> float:
    """Share of held-out prompts that one sample at temperature 1 answers exactly."""
    model.eval()
    right = 0
    for start in range(0, len(task.heldout), 256):
        items = task.heldout[start : start + 256]
        batch = tokenizer([item["prompt"] for item in items], return_tensors="pt", padding=True)
        with torch.no_grad():
            ids = model.generate(  # type: ignore[operator]
                **batch, do_sample=True, top_k=0, max_new_tokens=task.max_response_length
            )
        texts = tokenizer.batch_decode(
            ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
        )
        right += sum(
            text.strip() == item["answer"] for text, item in zip(texts, items, strict=True)
        )
    model.train()
    return right / len(task.heldout)


def versions_there() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("trl", "transformers", "torch", "accelerate")}


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # threads of the process group may abort the interpreter's own way out
