"""Reject, with a named error, what vLLM cannot do or cannot report correctly; compute the memory of its KV
cache.

Called by `rollout_vllm`. Imports no vLLM.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rljob_api.check.rules import VLLM_TEMPERATURES
from rljob_runtime.errors import ConfigError
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling

BLOCK_TOKENS = {"npu": 128}
"""Tokens of a block of the KV cache, by torch's type of device: vllm-ascend ignores other sizes with prefix
caching (tests/fixtures/ascend)."""
USUAL_BLOCK_TOKENS = 32  # the smallest size at which vLLM's CPU attention runs at full speed


def refuse_sampling(sampling: Sampling, truncates: bool) -> None:
    """Raise ConfigError for sampling whose log-probs vLLM does not report correctly."""
    if sampling.greedy:
        return
    low, high = VLLM_TEMPERATURES
    if not low <= sampling.temperature <= high:
        raise ConfigError(
            f"temperature={sampling.temperature} (spec.rollout) is outside of vLLM's {low} to "
            f"{high}; use one inside, or rollout.engine: torch"
        )
    if not truncates and (sampling.top_p < 1.0 or sampling.top_k > 0):
        raise ConfigError(
            f"topP={sampling.top_p} topK={sampling.top_k} was not announced to the vLLM engine "
            "(truncates=True); its log-probs would be those after the cut"
        )
    if truncates and sampling.temperature != 1.0:
        raise ConfigError(
            f"temperature={sampling.temperature} together with topP or topK (spec.rollout) has no "
            "right log-probs in vLLM; use temperature 1, or topP 1 and topK 0, or "
            "rollout.engine: torch"
        )


def refuse_long(groups: Sequence[PromptGroup], sampling: Sampling, max_length: int) -> None:
    """Raise ConfigError for a prompt whose longest response does not fit."""
    for group in groups:
        length = len(group.token_ids) + sampling.max_response_length
        if length > max_length:
            raise ConfigError(
                f"group {group.group} needs {length} tokens ({len(group.token_ids)} of them prompt)"
                f" but the vLLM engine was made for max_length={max_length}; shorten the prompt or "
                "raise spec.batch.maxPromptLength"
            )


def kv_cache_bytes_of(
    config: Mapping[str, Any],
    dtype: torch.dtype,
    max_sequences: int,
    max_length: int,
    *,
    tensor: int = 1,
    device: str = "cpu",
) -> int:
    """Return the bytes of max_sequences of max_length in whole blocks, and of one block that vLLM keeps
    empty, on one of `tensor` devices of torch's type `device`."""
    heads = config["num_attention_heads"]
    kv_heads = max(1, config.get("num_key_value_heads", heads) // tensor)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    token_values = 2 * config["num_hidden_layers"] * kv_heads * head_dim
    block = block_tokens(device)
    blocks = max_sequences * math.ceil(max_length / block) + 1
    return int(blocks * block * token_values * dtype.itemsize)


def block_tokens(device: str) -> int:
    """Return the tokens of a block of the KV cache on a type of device."""
    return BLOCK_TOKENS.get(device, USUAL_BLOCK_TOKENS)
