"""What vLLM is asked for on an NPU, against what each pinned release of vllm-ascend does with it."""

from pathlib import Path

import pytest
import torch
from scripts.ascend_facts import pinned

from rljob_runtime.devices.ascend import CHIPS
from rljob_runtime.rollout.vllm_limits import block_tokens, kv_cache_bytes_of
from rljob_runtime.rollout.vllm_start import ENVIRONMENT, VllmStart, arguments_of

RELEASES = pytest.mark.parametrize(
    "release", pinned("vllm-ascend"), ids=lambda release: release.release
)
CONFIG = {"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 3}
START = VllmStart(
    path=Path("model"),
    dtype=torch.bfloat16,
    max_sequences=8,
    max_length=200,
    seed=1,
    truncates=False,
    kv_cache_bytes=1,
    tensor=1,
    int8=False,
)


def cached_tokens(kv_bytes, block):
    """What vLLM's arithmetic makes of so many bytes: tokens of whole blocks, without the one kept empty."""
    return (kv_bytes // (block * 2 * 3 * 64 * 2) - 1) * block


@RELEASES
def test_an_engine_that_sleeps_can_wake(release):
    asked = arguments_of(START, "npu")

    given = asked["additional_config"].get(release.value("nz-key"), release.value("nz-by-default"))

    assert asked["enable_sleep_mode"]
    assert int(given) == 0
    assert release.value("wake-up-refuses-nz") == release.value("nz-key")


def test_other_devices_are_told_nothing_of_ascend():
    for device in ("cpu", "cuda"):
        assert "additional_config" not in arguments_of(START, device)


@RELEASES
def test_the_cache_has_room_for_all_sequences_in_the_blocks_that_are_made(release):
    block = int(release.value("block-tokens"))

    kv_bytes = kv_cache_bytes_of(CONFIG, torch.bfloat16, 8, 200, device="npu")

    assert arguments_of(START, "npu")["enable_prefix_caching"]
    assert arguments_of(START, "npu")["block_size"] == block_tokens("npu") == block
    assert cached_tokens(kv_bytes, block) == 8 * 256


@RELEASES
def test_nothing_asks_for_segments_that_an_engine_that_sleeps_refuses(release):
    name = "PYTORCH_NPU_ALLOC_CONF"

    assert release.value("sleep-without-segments") not in ENVIRONMENT.get(name, "")
    assert name not in Path("images/runtime-ascend.Dockerfile").read_text()


@RELEASES
def test_products_are_told_apart_by_the_same_numbers(release):
    for fact, name in (("chips-a2", "ascend910b"), ("chips-a3", "ascend910c")):
        first, last = map(int, release.value(fact).split())

        assert CHIPS[name] == range(first, last + 1)
