"""The update engines `megatron` and `mindspeed`: this project's engine around Megatron's model and optimizer.

Made by `update_table`. Losses, counts, guards and metrics are those of the engine `torch`; layers, gradient
buffers, sums over ranks and steps are Megatron Core's.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.errors import ConfigError, WeightsError
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.config import read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.policy_model import PolicyModel, TokenLogprobs
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_megatron.core import Core, open_core
from rljob_runtime.update.update_megatron.model import CoreDecoder, check_architecture, config_of
from rljob_runtime.update.update_megatron.optimizer import CoreAdam
from rljob_runtime.update.update_megatron.weights import to_hf, to_megatron
from rljob_runtime.update.update_torch import UpdateEngine

ALONE = UpdateDegrees(data=1)


def make_engine(setup: UpdateSetup) -> UpdateEngine:
    """Raises ConfigError where Megatron is not installed or cannot train the model."""
    _check(setup)
    update, groups = setup.spec.update, setup.ranks.groups
    degrees = groups.grid.degrees if groups else ALONE
    architecture = read_architecture(read_config(setup.model))
    check_architecture(architecture, degrees.tensor)
    if degrees.expert > 1 and degrees.tensor > 1:
        raise ConfigError(
            f"spec.update.parallelism: expert is {degrees.expert} and tensor {degrees.tensor}; engine "
            f"{update.engine} shares experts by one of them"
        )
    core = open_core(update.engine)
    _join(core, degrees, setup.spec.seed)
    dtype, zero = DTYPES[update.dtype], degrees.zero == 1
    recompute = update.recompute == "full"
    config = config_of(core, architecture, degrees, dtype=dtype, recompute=recompute)
    decoder = CoreDecoder(core, config, architecture, groups, dtype=dtype)
    policy = CorePolicy(decoder, setup.policy)
    policy.load()
    shared = core.DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=zero
    )
    model = core.DistributedDataParallel(config=config, ddp_config=shared, module=decoder)
    return UpdateEngine(
        policy,
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
            load=policy.load,
            store=policy.store,
        ),
    )


class CorePolicy:
    """A `PolicyModel` that Megatron trains. held: its weights where rollout and checkpoints look for them,
    which every step ends in."""

    def __init__(self, decoder: CoreDecoder, held: PolicyModel) -> None:
        self._decoder, self._held = decoder, held

    def logprobs(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """See PolicyModel."""
        if batch.num_tokens == 0:
            none_T, experts = torch.zeros(0), self._decoder.architecture.experts
            load = RouterLoad(experts) if experts else None
            return TokenLogprobs(logprobs_T=none_T, entropy_T=none_T, router_load=load)
        found: TokenLogprobs = self._decoder(
            batch, temperature=temperature, with_entropy=with_entropy
        )
        return found

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Those that are held."""
        return self._held.named_hf_parameters()

    def trained_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Megatron's."""
        return self._decoder.named_parameters()

    def recompute_layers(self) -> None:
        """Megatron's layers are made so."""

    def load(self) -> None:
        """Give the decoder the weights that are held. Raises WeightsError if names do not fit."""
        architecture = self._decoder.architecture
        own = dict(self._decoder.named_parameters())
        given = dict(to_megatron(dict(self.named_hf_parameters()), architecture))
        if own.keys() != given.keys():
            raise WeightsError(
                f"{architecture.name} does not fit Megatron's layers: missing "
                f"{sorted(own.keys() - given.keys())}, unknown {sorted(given.keys() - own.keys())}"
            )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(given[name])

    def store(self) -> None:
        """Hold the decoder's weights."""
        own = {name: weight.detach() for name, weight in self._decoder.named_parameters()}
        held = {name: weight.detach() for name, weight in self.named_hf_parameters()}
        first = self._held.first_expert if isinstance(self._held, Decoder) else 0
        for name, tensor in to_hf(own, self._decoder.architecture, first_expert=first):
            held[name].copy_(tensor)


def _check(setup: UpdateSetup) -> None:
    """What `run_rules` refuses, for whoever makes engines without it."""
    update = setup.spec.update
    only = {
        "offload": (update.offload, "none"),
        "optimizer.momentsDtype": (update.optimizer.moments_dtype, "float32"),
        "parallelism.pipeline": (update.parallelism.pipeline, 1),
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
        pipeline_model_parallel_size=1,
        context_parallel_size=degrees.context,
        expert_model_parallel_size=degrees.expert,
        expert_tensor_parallel_size=degrees.tensor,
    )
    core.model_parallel_cuda_manual_seed(seed)
