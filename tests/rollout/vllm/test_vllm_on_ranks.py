"""One vLLM engine that several devices share, with real vLLM, against the same on one device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_model import small_model
from vllm_rank import MAX_LENGTH, PROMPTS, changed, on_ranks, results

from rljob_runtime.rollout.rollout_vllm import VllmRollout

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    small_model(vocab_size=260).save_pretrained(path)
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


def test_devices_that_share_a_model_take_their_slices_alone(said, alone):
    for rank in said:
        for found, wanted in zip(rank["sliced"], alone["probed"], strict=True):
            assert found == pytest.approx(wanted, abs=1e-4)


def test_the_process_group_of_the_job_is_there_after_it(said):
    assert [rank["ranks"] for rank in said] == [4, 4, 4, 4]


def test_a_rank_that_is_killed_leaves_no_shared_memory_for_it_has_no_name(said):
    for rank in said:
        assert rank["shared"]
        assert all(path.endswith("(deleted)") for path in rank["shared"])
