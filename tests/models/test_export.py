"""`rljob export`: the model of a run as a directory that transformers loads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import make_reference, weights_of
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from rljob_runtime.cli.main import app
from rljob_runtime.models.export import export_model
from rljob_runtime.record.checkpoint import MODEL_FOLDER, CheckpointStore, RunState

BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


def save_checkpoints(run: Path, family: str, steps: int = 1) -> dict[int, Any]:
    """A run's folder with checkpoints of different models; returns the models by step."""
    store = CheckpointStore(folder=run / "checkpoints", keep=steps)
    models = {}
    for step in range(1, steps + 1):
        models[step] = make_reference(family, seed=step)
        models[step].save_pretrained(store.begin(step) / MODEL_FOLDER)
        store.commit(
            RunState(step=step, seed=0, weight_version=step, dock_rows=0, spec_digest="digest")
        )
    return models


def export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.mark.parametrize("family", ["llama-tied", "qwen3-moe", "deepseek-v3"])
def test_a_runs_newest_checkpoint_is_loaded_by_transformers(family: str, tmp_path: Path) -> None:
    newest = save_checkpoints(tmp_path / "run", family, steps=2)[2]

    done = export(tmp_path / "run", tmp_path / "out")

    assert done.exit_code == 0, done.output
    assert str(tmp_path / "out") in done.output
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, weight in weights_of(newest).items():
        assert weights_of(loaded)[name].equal(weight), name


def test_a_checkpoint_is_exported_by_its_folder_with_the_files_beside_it(tmp_path: Path) -> None:
    first = save_checkpoints(tmp_path / "run", "llama", steps=2)[1]
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000001"
    (checkpoint / MODEL_FOLDER / "tokenizer.json").write_text('{"a": 1}')

    done = export(checkpoint, tmp_path / "out")

    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"a": 1}'
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert weights_of(loaded)["lm_head.weight"].equal(first.lm_head.weight)


def test_weights_are_cast_but_for_what_chooses_experts(tmp_path: Path) -> None:
    reference = save_checkpoints(tmp_path / "run", "deepseek-v3")[1]

    done = export(tmp_path / "run", tmp_path / "out", "--dtype", "bfloat16")

    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        types = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
        assert file.get_tensor(BIAS).equal(weights_of(reference)[BIAS])
        norm = file.get_tensor("model.norm.weight")
    assert norm.equal(reference.model.norm.weight.bfloat16())
    biases = {name for name, dtype in types.items() if dtype is not torch.bfloat16}
    assert biases == {BIAS, BIAS.replace(".1.", ".2.")}


def test_a_large_model_is_written_in_shards_that_transformers_reads(tmp_path: Path) -> None:
    reference = save_checkpoints(tmp_path / "run", "qwen3-moe")[1]

    export_model(tmp_path / "run", tmp_path / "out", max_shard_bytes=30_000)

    shards = sorted(tmp_path.glob("out/*.safetensors"))
    assert len(shards) > 2
    assert all(shard.stat().st_size < 40_000 for shard in shards)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {shard.name for shard in shards}
    stored = sum(weight.nbytes for weight in weights_of(reference).values())
    assert index["metadata"]["total_size"] == stored
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, weight in weights_of(reference).items():
        assert weights_of(loaded)[name].equal(weight), name


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    done = export(tmp_path, tmp_path / "out")

    assert done.exit_code == 2
    assert f"{tmp_path} holds neither a checkpoint nor a model" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_target_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    save_checkpoints(tmp_path / "run", "llama")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")

    done = export(tmp_path / "run", tmp_path / "out")

    assert done.exit_code == 2
    assert "is not empty; name a folder that does not exist yet" in done.stderr
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["notes.txt"]
