"""Low-rank adapters on a decoder's matrices (LoRA, arXiv:2106.09685): added, initialized, merged, disabled.

The frozen weights do not change: rollout engines receive merged weights, tensor by tensor, and the reference
is the same model with its adapters disabled. This is code for one device; `parallelize` shards what it adds.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from rljob_api.model.adapters import LORA_A, is_adapter
from rljob_api.spec.lora import ALL_LINEAR, Lora
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.blocks.matrix import Matrix
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.policy_model import PolicyModel, TokenLogprobs
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.samples.seeds import derive_seed


def add_adapters(decoder: Decoder, lora: Lora) -> None:
    """Freeze the decoder, and add adapters of the same dtype to its target matrices, uninitialised.

    Raises ConfigError if no matrix of its layers is a target.
    """
    decoder.requires_grad_(False)
    targets = {
        name: block
        for name, block in decoder.model.layers.named_modules()
        if isinstance(block, Matrix)
        and (lora.target_modules == [ALL_LINEAR] or name.split(".")[-1] in lora.target_modules)
    }
    if not targets:
        raise ConfigError(
            f"no matrix of {decoder.architecture.name} is called {' or '.join(lora.target_modules)} "
            "(spec.update.lora.targetModules); name some of its layers'"
        )
    for block in targets.values():
        rows, columns = block.weight.shape
        with torch.device(block.weight.device):
            block.lora_A = Matrix(lora.rank, columns, block.weight.dtype)
            block.lora_B = Matrix(rows, lora.rank, block.weight.dtype)
        block.lora_scale = lora.scale


def initial_adapter(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return the initial values of a full adapter as PEFT draws them, float32, the same for every layout.

    A is uniform within 1 / √columns (Kaiming's with a = √5), B is zero.
    """
    if not name.endswith(LORA_A):
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(derive_seed(seed, "lora", name))
    bound = shape[1] ** -0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def draw_adapters(decoder: Decoder, seed: int) -> None:
    """Set the initial values of a full decoder's adapters."""
    with torch.no_grad():
        for name, adapter in named_adapters(decoder):
            adapter.copy_(initial_adapter(name, tuple(adapter.shape), seed))


def named_adapters(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yield the local adapters, as live tensors, by PEFT's names without its prefix."""
    yield from (named for named in decoder.named_parameters() if is_adapter(named[0]))


def adapted_matrices(model: PolicyModel) -> dict[str, Matrix]:
    """Return matrices with an adapter by their weight's name; empty for a model without adapters."""
    modules = model.named_modules() if isinstance(model, Decoder) else ()
    return {
        f"{name}.weight": block
        for name, block in modules
        if isinstance(block, Matrix) and block.lora_A is not None
    }


def frozen_parameters(model: PolicyModel) -> Iterator[Tensor]:
    """Yield the parameters that the optimizer does not change while adapters are trained."""
    if isinstance(model, Decoder):
        yield from (weight for weight in model.parameters() if not weight.requires_grad)


@torch.no_grad()
def merge_adapter(weight: Tensor, lora_a: Tensor, lora_b: Tensor, scale: float) -> Tensor:
    """Return weight + scale · B A, computed in float32 or wider, in the weight's dtype and on its device.

    Corresponding boxes of all three return that box.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    narrow = lora_a.to(
        weight.device, wide, copy=True
    )  # laid out alike on every rank, for equal bits
    added = (scale * lora_b.to(weight.device, wide)) @ narrow
    return (weight.to(wide) + added).to(weight.dtype)


def merged_weights(
    model: PolicyModel,
    weights: Mapping[str, Tensor],
    read_live: Callable[[Tensor], Tensor] = lambda weight: weight,
) -> Iterator[tuple[str, Tensor]]:
    """Yield a full model's weights by Hugging Face name, with adapters merged, one at a time.

    weights: the model's, live. read_live: returns the current values of a live tensor.
    """
    adapted = adapted_matrices(model)
    for name, weight in weights.items():
        yield name, with_adapter(read_live(weight.detach()), adapted.get(name))


def with_adapter(weight: Tensor, matrix: Matrix | None) -> Tensor:
    """Return a full weight merged with its adapter, or unchanged if it has none."""
    if matrix is None or matrix.lora_A is None or matrix.lora_B is None:
        return weight
    return merge_adapter(weight, matrix.lora_A.weight, matrix.lora_B.weight, matrix.lora_scale)


class WithoutAdapters:
    """A `PolicyModel`: a decoder as it was before its adapters were trained, sharing its weights."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self.text_ids = decoder, decoder.text_ids

    def logprobs(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Return the log-probs of the frozen model."""
        with _left_out(self._decoder):
            return self._decoder.logprobs(batch, temperature=temperature, with_entropy=with_entropy)

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the frozen weights by name."""
        yield from self._decoder.named_hf_parameters()

    def trained_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield nothing, since all parameters are frozen."""
        yield from ()

    def recompute_layers(self) -> None:
        """Recompute the layers of the decoder."""
        self._decoder.recompute_layers()


@contextmanager
def _left_out(decoder: Decoder) -> Iterator[None]:
    matrices = adapted_matrices(decoder).values()
    for matrix in matrices:
        matrix.uses_adapter = False
    try:
        yield
    finally:
        for matrix in matrices:
            matrix.uses_adapter = True
