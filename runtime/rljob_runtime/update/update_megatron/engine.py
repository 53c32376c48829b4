"""The update engines `megatron` and `mindspeed`: this project's engine around Megatron's model and optimizer.

Made by `update_table`. Losses, counts, guards and metrics are those of the engine `torch`; layers, gradient
buffers, sums over ranks and steps are Megatron Core's.
"""

from functools import partial

import torch
import torch.distributed as dist

from rljob_api.model.architecture import read_shape
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.errors import ConfigError, WeightsError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import read_architecture
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_megatron.core import Core, open_core
from rljob_runtime.update.update_megatron.model import (
    CoreDecoder,
    check_architecture,
    config_of,
    core_decoder,
)
from rljob_runtime.update.update_megatron.optimizer import CoreAdam
from rljob_runtime.update.update_megatron.weights import to_hf, to_megatron
from rljob_runtime.update.update_torch import UpdateEngine

ALONE = UpdateDegrees(data=1)


def make_engine(setup: UpdateSetup) -> UpdateEngine:
    """Raises ConfigError where Megatron is not installed or cannot train the model."""
    _check(setup)
    update, groups = setup.spec.update, setup.ranks.groups
    degrees = groups.grid.degrees if groups else ALONE
    entries = read_config(setup.model)
    architecture = read_architecture(entries)
    check_architecture(architecture, degrees)
    core = open_core(update.engine)
    _join(core, degrees, setup.spec.seed)
    dtype, zero = DTYPES[update.dtype], degrees.zero == 1
    config = config_of(core, architecture, degrees, dtype=dtype)
    decoder = core_decoder(
        core,
        config,
        architecture,
        setup.policy,
        shape=read_shape(entries, name=f"{setup.model}/config.json"),
        groups=groups,
        dtype=dtype,
        recompute=update.recompute == "full",
    )
    load(decoder)
    shared = core.DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=zero
    )
    model = core.DistributedDataParallel(config=config, ddp_config=shared, module=decoder)
    return UpdateEngine(
        decoder,
        optimizer=update.optimizer,
        total_steps=setup.total_steps,
        temperature=setup.spec.rollout.temperature,
        ranks=setup.ranks,
        ledger=setup.ledger,
        steps=CoreAdam(
            core,
            model,
            decoder,
            update.optimizer,
            dtype=dtype,
            zero=zero,
            load=partial(load, decoder),
            store=partial(store, decoder),
        ),
    )


def load(decoder: CoreDecoder) -> None:
    """Give it the weights that are held. Raises WeightsError if names do not fit."""
    own = dict(decoder.named_parameters())
    given = dict(to_megatron(dict(decoder.named_hf_parameters()), decoder.architecture))
    if own.keys() != given.keys():
        raise WeightsError(
            f"{decoder.architecture.name} does not fit Megatron's layers: missing "
            f"{sorted(own.keys() - given.keys())}, unknown {sorted(given.keys() - own.keys())}"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(given[name])


def store(decoder: CoreDecoder) -> None:
    """Hold its weights."""
    own = {name: weight.detach() for name, weight in decoder.named_parameters()}
    held = {name: weight.detach() for name, weight in decoder.named_hf_parameters()}
    for name, tensor in to_hf(own, decoder.architecture, first_expert=decoder.first_expert):
        held[name].copy_(tensor)


def _check(setup: UpdateSetup) -> None:
    """What `run_rules` refuses, for whoever makes engines without it."""
    update = setup.spec.update
    only = {
        "offload": (update.offload, "none"),
        "optimizer.momentsDtype": (update.optimizer.moments_dtype, "float32"),
        "parallelism.zero": (update.parallelism.zero, min(update.parallelism.zero, 1)),
    }
    for path, (value, legal) in only.items():
        if value != legal:
            raise ConfigError(
                f"spec.update.{path} is {value}; engine {update.engine} takes {legal}"
            )


def _join(core: Core, degrees: UpdateDegrees, seed: int) -> None:
    """Make Megatron's groups, once a process, over all ranks that train."""
    if core.model_parallel_is_initialized():
        return
    if not dist.is_initialized():  # one rank: nobody to meet
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(store=store, rank=0, world_size=1)
    core.initialize_model_parallel(
        tensor_model_parallel_size=degrees.tensor,
        pipeline_model_parallel_size=degrees.pipeline,
        context_parallel_size=degrees.context,
        expert_model_parallel_size=degrees.expert,
        expert_tensor_parallel_size=degrees.tensor,
    )
    core.model_parallel_cuda_manual_seed(seed)
