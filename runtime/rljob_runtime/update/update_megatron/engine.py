"""The update engines `megatron` and `mindspeed`: this project's engine around Megatron's model and optimizer.

`update_table` creates it. Losses, counts, guards and metrics are those of the engine `torch`; layers,
gradient buffers, sums over ranks and steps are Megatron Core's.
"""

import weakref
from typing import Any

import torch.distributed as dist

from rljob_api.check.megatron_rules import megatron_degrees, megatron_settings
from rljob_api.model.architecture import Shape, read_shape
from rljob_api.spec.engines import Update
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.devices.world_connections import CONNECTIONS
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import read_architecture
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_megatron.core import Core, open_core
from rljob_runtime.update.update_megatron.model import (
    check_architecture,
    config_of,
    core_decoder,
    expert_tensor,
)
from rljob_runtime.update.update_megatron.optimizer import CoreAdam
from rljob_runtime.update.update_torch import TorchUpdateEngine

ALONE = UpdateDegrees(data=1)


def make_engine(setup: UpdateSetup) -> TorchUpdateEngine:
    """Create the engine. Raises ConfigError if Megatron is not installed or cannot train the model."""
    update, groups = setup.spec.update, setup.ranks.groups
    degrees = groups.grid.degrees if groups else ALONE
    entries = read_config(setup.model)
    architecture = read_architecture(entries)
    shape = read_shape(entries, name=f"{setup.model}/config.json")
    check_architecture(architecture)
    _check(update, degrees, shape)
    core = open_core(update.engine)
    _join(core, degrees, setup.spec.seed)
    dtype, zero = DTYPES[update.dtype], degrees.zero == 1
    config = config_of(core, architecture, degrees, dtype=dtype)
    decoder = core_decoder(
        core,
        config,
        architecture,
        setup.policy,
        shape=shape,
        groups=groups,
        dtype=dtype,
        recompute=update.recompute == "full",
    )
    shared = core.DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=zero
    )
    model = core.DistributedDataParallel(config=config, ddp_config=shared, module=decoder)
    decoder.hold()  # since it moved them if ranks share the optimizer
    return TorchUpdateEngine(
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
            ledger=setup.ledger,
        ),
    )


_INITIALIZED_WORLDS = weakref.WeakSet[Any]()
"""The process worlds that Megatron's groups were created in."""


def _check(update: Update, degrees: UpdateDegrees, shape: Shape | None) -> None:
    """Raise ConfigError for what the job rules refuse, since engines can be created without the rules."""
    for path, value, legal in megatron_settings(update):
        if value != legal:
            raise ConfigError(f"{path} is {value}; engine {update.engine} takes {legal}")
    if shape is not None:
        for problem in megatron_degrees(update.engine, degrees, shape):
            raise ConfigError(f"{problem.path} {problem.message}")


def _join(core: Core, degrees: UpdateDegrees, seed: int) -> None:
    """Create Megatron's groups over all ranks that train, once per world of processes."""
    if core.model_parallel_is_initialized():
        if dist.is_initialized() and dist.group.WORLD in _INITIALIZED_WORLDS:
            return
        core.destroy_model_parallel()
    if not dist.is_initialized():  # a single rank needs no rendezvous
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(store=store, rank=0, world_size=1)
    with CONNECTIONS.tracking_groups():
        core.initialize_model_parallel(
            # as in `RankGrid`: experts are in data × context, for any number of tensor ranks
            order="tp-cp-dp-ep-pp" if degrees.tensor > 1 else "tp-cp-ep-dp-pp",
            tensor_model_parallel_size=degrees.tensor,
            pipeline_model_parallel_size=degrees.pipeline,
            context_parallel_size=degrees.context,
            expert_model_parallel_size=degrees.expert,
            expert_tensor_parallel_size=expert_tensor(degrees),
        )
    _INITIALIZED_WORLDS.add(dist.group.WORLD)
    core.model_parallel_cuda_manual_seed(seed)
