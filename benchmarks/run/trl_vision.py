"""GRPO on pictures by TRL's GRPOTrainer, timed. Run by `vision.py` inside TRL's own environment.

Reads a task (JSON file, the `Task` below), trains, and writes a `Timing` of `trl_grpo` (JSON file) with the
pictures that the vision tower saw. The tower is frozen, as it is on the other side.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Image, List
from transformers import AutoImageProcessor, AutoTokenizer, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from trl import GRPOTrainer

from benchmarks.run.trl_grpo import (
    Clock,
    Timing,
    Training,
    config_of,
    time_generation,
    versions_there,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Training):
    """model: directory with a processor, too. rows: {"text", "answer", "image": path}, a prompt each, in the
    order of training."""

    rows: list[dict[str, str]]


class PictureProcessor(Qwen2_5_VLProcessor):  # type: ignore[misc]
    """Without a processor of videos, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return argument and super().check_argument_for_proper_class(argument_name, argument)


def main(task_file: str, result_file: str) -> None:
    task = Task(**json.loads(Path(task_file).read_text()))
    torch.set_num_threads(task.threads)
    tokenizer = AutoTokenizer.from_pretrained(task.model, padding_side="left")
    images = AutoImageProcessor.from_pretrained(task.model, backend="pil")
    processor = PictureProcessor(images, tokenizer, None, chat_template=tokenizer.chat_template)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(task.model, dtype=torch.float32)
    tower = model.model.visual.requires_grad_(False)
    seen = [0]

    def count(_: Any, __: Any, arguments: dict[str, Any]) -> None:
        seen[0] += len(arguments["grid_thw"])

    tower.register_forward_pre_hook(count, with_kwargs=True)
    timing = Timing(versions=versions_there())
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=_different(timing),
        args=config_of(task),
        train_dataset=_dataset(task),
        processing_class=processor,
        callbacks=[Clock(timing, lambda: 0.0, 0)],
    )
    time_generation(trainer, timing)
    trainer.train()
    told = asdict(timing) | {"pictures_seen": seen[0]}
    Path(result_file).write_text(json.dumps(told))


def _dataset(task: Task) -> Dataset:
    rows = [
        {
            "prompt": [{"role": "user", "content": row["text"]}],
            "images": [row["image"]],
            "answer": row["answer"],
        }
        for row in task.rows
    ]
    return Dataset.from_list(rows).cast_column("images", List(Image()))


def _different(timing: Timing) -> Any:
    def different(completion_ids: list[list[int]], **_: Any) -> list[float]:
        rewards = [len(set(ids)) % 5 / 4 for ids in completion_ids]
        timing.response_tokens.append(sum(map(len, completion_ids)))
        timing.reward.append(sum(rewards) / len(rewards))
        return rewards

    return different


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
