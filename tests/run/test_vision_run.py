"""A vision-language model through a whole run, on rows of text and on rows with pictures, and out of it with
its tower."""

import base64
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from picture_models import colour, save_pictured_rows, save_small_vision_model
from PIL import Image
from reference_models import weights_of
from transformers import AutoModelForImageTextToText
from typer.testing import CliRunner
from vision_models import make_pictured_batch, make_vision_reference, reference_inputs
from whole_runs import Finished, killed_copy, run

from rljob_api.model.volumes import BYTES_PER_ITEM, GB
from rljob_runtime.cli.main import app
from rljob_runtime.task.tokenizer import BYTE_VOCABULARY, save_byte_tokenizer

pytestmark = [pytest.mark.run]


def save_model(folder: Path) -> Any:
    """A random Qwen3-VL over bytes; returns it."""
    model: Any = make_vision_reference("qwen3-vl-tied", vocab_size=BYTE_VOCABULARY)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return model


def test_a_vision_language_model_is_trained_on_text_saved_and_exported(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    reference = save_model(tmp_path / "model")
    before = weights_of(reference)
    job = job_file(
        model={"path": str(tmp_path / "model")},
        rewards=[{"name": "letters", "type": "format", "pattern": {"pattern": "[a-z]"}}],
        update__parallelism={"tensor": 2, "data": 1},
        update__optimizer__learningRate=1e-3,
        algorithm={"name": "grpo", "params": {"klCoefficient": 0.01}},
        steps=2,
        checkpoint={"every": 1},
    )

    planned = CliRunner().invoke(app, ["plan", str(job)])
    whole = run(job, tmp_path / "whole")
    killed_copy(whole, 1, tmp_path / "killed")
    resumed = run(job, tmp_path / "killed", "--resume")
    exported = CliRunner().invoke(app, ["export", str(tmp_path / "whole"), str(tmp_path / "out")])

    assert planned.exit_code == 0, planned.output
    assert "on no device: rows show no pictures" in planned.output
    assert whole.code == 0, whole.output
    assert resumed.code == 0, resumed.output
    assert exported.exit_code == 0, exported.output
    files = [
        tmp_path / kind / "checkpoints" / "step-000002" / "model" / "model.safetensors"
        for kind in ("whole", "killed")
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    loaded: Any = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    after = weights_of(loaded)
    assert after.keys() == before.keys()
    trained = {name for name in before if not after[name].equal(before[name])}
    assert trained == {name for name in before if "visual" not in name}
    inputs = reference_inputs(make_pictured_batch(), 6)
    with torch.no_grad():
        assert not loaded(**inputs).logits.allclose(reference(**inputs).logits)


PROMPT = 2 + 18 + 1
"""Tokens of `0:`, of a picture of 16 tokens with its begin and end, and of `?`."""
PICTURES = [
    [(16, 24)],
    [],
    [(40, 16), (8, 8)],
    [(100, 90)],
    [(24, 24)],
    [(16, 16), (16, 16), (8, 40)],
]


LARGEST = [[(32, 32)]] * 6
"""A row's one picture is as large as `maxPixels` allows, and prompts are of one length."""


def pictured(
    folder: Path,
    job_file: Callable[..., Path],
    pictures: Sequence[Sequence[tuple[int, int]]] = PICTURES,
    **changes: Any,
) -> Path:
    """A job on rows with no, one and several pictures, of these widths and heights."""
    save_small_vision_model(folder / "model")
    shutil.copytree(folder / "model", folder / "teacher")
    save_pictured_rows(folder, pictures)
    given = {
        "model": {"path": str(folder / "model"), "vision": "frozen"},
        "data": {"jsonl": {"path": "rows.jsonl"}, "images": {"maxPixels": 32 * 32}},
        "rewards": [{"name": "letters", "type": "format", "pattern": {"pattern": "[a-z]"}}],
        "batch": {
            "globalBatchSize": 4,
            "samplesPerPrompt": 4,
            "maxPromptLength": 64,
            "maxResponseLength": 8,
        },
        "update__optimizer__learningRate": 1e-3,
        "algorithm": {"name": "grpo", "params": {"klCoefficient": 0.01}},
        "steps": 2,
        "checkpoint": {"every": 1},
        "evaluation": {"prompts": 1, "every": 2},
    }
    return job_file(**(given | changes))


def whole_and_resumed(job: Path, folder: Path) -> tuple[Finished, list[Path]]:
    """The run of a job, and the model's directories after its two steps and after those of another run, which
    was killed behind the first and went on."""
    whole = run(job, folder / "whole")
    killed_copy(whole, 1, folder / "killed")
    resumed = run(job, folder / "killed", "--resume")
    assert whole.code == 0, whole.output
    assert resumed.code == 0, resumed.output
    ends = [folder / kind / "checkpoints" / "step-000002" for kind in ("whole", "killed")]
    return whole, [end / "model" for end in ends]


def same_weights(folders: list[Path]) -> bool:
    one, other = (folder / "model.safetensors" for folder in folders)
    return one.read_bytes() == other.read_bytes()


def test_rows_with_pictures_train_and_a_killed_run_goes_on_to_the_same_bits(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    algorithm = {"name": "ppo", "params": {"klCoefficient": 0.01}}
    job = pictured(tmp_path, job_file, flow={"mode": "sync"}, algorithm=algorithm)
    before = weights_of(AutoModelForImageTextToText.from_pretrained(tmp_path / "model"))

    whole, folders = whole_and_resumed(job, tmp_path)

    assert same_weights(folders)
    assert same_weights([folder.parent / "critic" / "model" for folder in folders])
    after = weights_of(AutoModelForImageTextToText.from_pretrained(folders[0]))
    assert {name for name in before if not after[name].equal(before[name])} == {
        name for name in before if "visual" not in name
    }
    for event in whole.of_kind("reshard"):  # what is the critic's does not move
        assert event["kept_bytes"] == 0
        assert event["peak_bytes"] <= event["bound_bytes"]
    for event in whole.of_kind("step"):
        assert event["metrics"]["mismatch/max"] < 2e-5
        moved = event["metrics"]["pictures_per_second"] * event["seconds"]
        told = sum(len(group.get("pictures", [])) for group in event["samples"])
        assert moved == pytest.approx(round(moved))
        assert told <= round(moved) <= told + 3  # of one group more
        for group in event["samples"]:
            row = int(re.findall(r"\d", group["prompt"])[-1])
            shown = group.get("pictures", [])
            assert len(shown) == len(PICTURES[row]) == group["prompt"].count("<image>")
            for place, picture in enumerate(shown):
                assert abs(colour_of(picture) - colour(row, place)).max() <= 2


def colour_of(shown: dict[str, Any]) -> NDArray[np.int64]:
    """That of the picture's middle."""
    image = Image.open(io.BytesIO(base64.b64decode(shown["content"]))).convert("RGB")
    assert image.size == (shown["width"], shown["height"])
    return np.array(image.getpixel((image.width // 2, image.height // 2)))


def test_samples_keep_their_pictures_ahead_of_the_update_from_step_to_step_and_as_candidates(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = pictured(
        tmp_path,
        job_file,
        placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
        flow={"mode": "async", "maxStaleness": 3, "partialRollout": {"budgetTokens": 5}},
        algorithm={"name": "dapo", "params": {"dynamicSampling": {}}},
        update__optimizer__learningRate=1e-12,  # so that all versions say the same
        steps=3,
    )

    ended = run(job, tmp_path / "run")

    assert ended.code == 0, ended.output
    metrics = [event["metrics"] for event in ended.of_kind("step")]
    assert len(metrics) == 3
    assert max(of_step["staleness/max"] for of_step in metrics) > 0
    assert max(of_step["partial_rollout/mixed_share"] for of_step in metrics) > 0
    assert all(of_step["mismatch/max"] < 2e-5 for of_step in metrics), "samples saw other pictures"


def test_a_tower_is_trained_with_its_ranks_and_a_killed_run_goes_on_to_the_same_bits(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = pictured(
        tmp_path,
        job_file,
        model={"path": str(tmp_path / "model"), "vision": "trained"},
        update__parallelism={"tensor": 2, "data": 1, "zero": 1},
        flow={"mode": "sync"},
    )
    before = weights_of(AutoModelForImageTextToText.from_pretrained(tmp_path / "model"))

    whole, folders = whole_and_resumed(job, tmp_path)

    assert same_weights(folders)
    after = weights_of(AutoModelForImageTextToText.from_pretrained(folders[0]))
    assert {name for name in before if after[name].equal(before[name])} == set()
    for event in whole.of_kind("step"):  # also behind the first, whose tower is another
        assert event["metrics"]["mismatch/max"] < 2e-5


def test_devices_of_their_own_and_a_teacher_see_the_same_pictures_and_adapters_learn_from_them(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = pictured(
        tmp_path,
        job_file,
        LARGEST,
        data={"jsonl": {"path": "rows.jsonl"}, "images": {"perPrompt": 1, "maxPixels": 32 * 32}},
        batch__maxPromptLength=PROMPT,
        algorithm={
            "name": "distillation",
            "params": {"klCoefficient": 0.01, "rewardCoefficient": 1},
        },
        teacher={"path": "teacher", "parallelism": {"tensor": 2}},
        placement={"mode": "separated", "updateDevices": 2, "rolloutDevices": 1},
        accelerator__devicesPerNode=3,
        update__parallelism={"tensor": 2, "data": 1},
        update__lora={"rank": 2},
        flow={"mode": "streaming"},
    )

    ended = run(job, tmp_path / "run")

    assert ended.code == 0, ended.output
    assert (tmp_path / "run" / "checkpoints" / "step-000002" / "adapter").is_dir()
    metrics = [event["metrics"] for event in ended.of_kind("step")]
    assert all(of_step["mismatch/max"] < 2e-5 for of_step in metrics)
    assert abs(metrics[0]["teacher/kl"]) < 1e-5, "the policy's own weights, shown something else"

    plan = json.loads(CliRunner().invoke(app, ["plan", str(job), "--json"]).output)
    planned = plan["sampleVolume"]["picturesGB"] * GB + 4 * 4 * PROMPT * BYTES_PER_ITEM
    shown = {"generate", "reference", "teacher", "update"}
    edges = ended.of_kind("dock")[-1]["edges"]  # the first one counts an evaluation's prompts, too
    read = {edge["to"]: edge["bytes"] for edge in edges if edge["from"] == "feed"}
    assert {state: read[state] for state in shown} == pytest.approx(
        dict.fromkeys(shown, planned), rel=0.05
    )
