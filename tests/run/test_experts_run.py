"""A model with latent attention and experts through a whole run, and out of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reference_models import DEEPSEEK, GROUPED, weights_of
from transformers import AutoModelForCausalLM
from transformers.models.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM
from typer.testing import CliRunner
from whole_runs import run

from rljob_runtime.cli.main import app
from rljob_runtime.task.tokenizer import BYTE_VOCABULARY, save_byte_tokenizer

pytestmark = [pytest.mark.run]
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


def save_model(folder: Path) -> Any:
    """A random DeepSeek-V3 over bytes, its correction bias not zero; returns it."""
    sizes = DEEPSEEK | GROUPED | {"vocab_size": BYTE_VOCABULARY}
    model: Any = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes))
    weights_of(model)[BIAS].normal_()
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return model


def test_a_deepseek_v3_is_trained_saved_and_exported(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    before = weights_of(save_model(tmp_path / "model"))
    job = job_file(
        model={"path": str(tmp_path / "model")},
        rewards=[{"name": "letters", "type": "format", "pattern": {"pattern": "[a-z]"}}],
        rollout={"dtype": "bfloat16", "quantization": "int8"},
        update__routerReplay=True,
        steps=2,
        checkpoint={"every": 2},
    )

    finished = run(job, tmp_path / "run")
    exported = CliRunner().invoke(app, ["export", str(tmp_path / "run"), str(tmp_path / "out")])

    assert finished.code == 0, finished.output
    assert exported.exit_code == 0, exported.output
    for event in finished.of_kind("step"):
        assert event["metrics"]["router/load_max"] > 1
        assert event["metrics"]["skipped"] == 0
        assert 0 < event["metrics"]["mismatch/kl"] < 1e-3
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    after = weights_of(loaded)
    assert after.keys() == before.keys()
    assert after[BIAS].equal(before[BIAS])
    trained = {name for name in before if not after[name].equal(before[name])}
    assert {"model.layers.1.mlp.gate.weight", "model.layers.2.mlp.experts.down_proj"} <= trained
