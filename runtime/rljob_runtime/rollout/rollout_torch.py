"""Rollout in plain torch: a bounded KV cache, prompts computed once a group, rows refilled.

Created by the device worker for `rollout.engine: torch`. `cache_layout` lays out the cache, `generation` runs
a call; the same groups, weights and sampling give bitwise the same output. Only `model_share` depends on the
ranks that share the model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import UnsupportedArchitecture
from rljob_runtime.models.fused.fused_weights import WeightFactory, floats, tensors_in
from rljob_runtime.models.tower import VisionTowers
from rljob_runtime.models.weight_stream import checked_weights
from rljob_runtime.models.weights import WeightsDigest, stored_weights, weights_checksum
from rljob_runtime.rollout.cache_layout import choose_layout, layer_items, new_cache
from rljob_runtime.rollout.generation import Generation
from rljob_runtime.rollout.model_share import FullModel, ModelShare
from rljob_runtime.rollout.parallel_rollout.rank_share import RankShare
from rljob_runtime.rollout.partners import begin_turns
from rljob_runtime.rollout.prompts import RowPrompts, SharedPrompts
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, RolloutEngine, Sampling
from rljob_runtime.rollout.rollout_grid import RolloutPurpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.rollout.slots import Slots
from rljob_runtime.rollout.waiting import WaitingSamples, check_lengths

Quantization = Literal["none", "int8"]


def make_torch_rollout(
    path: Path,
    *,
    dtype: torch.dtype,
    max_sequences: int,
    max_length: int,
    cache_tokens: int | None = None,
    device: str = "cpu",
    ledger: MemoryLedger | None = None,
    groups: RolloutGroups | None = None,
    quantization: Quantization = "none",
    pictures: bool = False,
    towers: VisionTowers | None = None,
    keeps_routes: bool = False,
    text_ids: int | None = None,
) -> RolloutEngine:
    """Return an engine for the directory's model: `TorchRollout`, or `TransformersRollout` for other models.

    max_sequences: generated at the same time, at most. max_length: prompt and response, in tokens.
    cache_tokens: capacity of the KV cache; None for max_sequences of max_length. groups: of the ranks that
    share the model; None for one rank. quantization: of the layers' matrices. pictures: whether prompts show
    any. towers: of the device. keeps_routes: of a model with experts, whether samples include the experts of
    their tokens. text_ids: ids from this one on are never sampled; None: all may be.

    Raises ConfigError and WeightsError as `load_policy` does. Raises ConfigError for degrees that the model
    cannot have and for a cache without room for one longest sequence.
    """
    try:
        return TorchRollout(
            path,
            dtype=dtype,
            max_sequences=max_sequences,
            max_length=max_length,
            cache_tokens=cache_tokens,
            device=device,
            ledger=ledger,
            groups=groups,
            quantization=quantization,
            pictures=pictures,
            towers=towers,
            keeps_routes=keeps_routes,
            text_ids=text_ids,
        )
    except UnsupportedArchitecture as error:
        _check_transformers(path, error, groups, quantization)
        if keeps_routes:
            raise ConfigError(
                f"spec.update.routerReplay: transformers computes the model of {path} ({error}), and tells "
                "no routes; use a model of docs/models.md with experts, or leave it out"
            ) from error
        if pictures:
            raise ConfigError(
                f"spec.model.vision: transformers computes the model of {path} ({error}), and is shown no "
                "pictures here; use a model of docs/vision.md, or leave it out"
            ) from error
        from rljob_runtime.rollout.rollout_transformers import TransformersRollout

        if cache_tokens is not None:
            max_sequences = min(max_sequences, cache_tokens // max_length)
        return TransformersRollout(
            path,
            dtype=dtype,
            max_sequences=max_sequences,
            max_length=max_length,
            device=device,
            text_ids=text_ids,
        )


def _check_transformers(
    path: Path, reason: Exception, groups: RolloutGroups | None, quantization: Quantization
) -> None:
    """Raise ConfigError for what a model that runs through transformers cannot have."""
    through = f"{path}: {reason}, so that transformers computes it"
    if groups is not None and groups.shares_models:
        raise ConfigError(
            f"{through}, on one device a model; use tensor, pipeline and expert 1 in "
            "spec.rollout.parallelism, or rollout.engine: vllm"
        ) from reason
    if quantization != "none":
        raise ConfigError(
            f"{through}, in its own type; use spec.rollout.quantization: none"
        ) from reason


def _check_cache(tokens: int, max_length: int) -> None:
    if tokens < max_length:
        raise ConfigError(
            f"a KV cache of {tokens} tokens has no room for one sequence of {max_length}; raise "
            "spec.rollout.kvCacheMemory or shorten spec.batch.maxPromptLength and maxResponseLength"
        )


class TorchRollout:
    """A `RolloutEngine` for the families of `models.families`.

    Arguments as in `make_torch_rollout`; pictures: whether prompts show any. Raises UnsupportedArchitecture
    for other models. Where ranks share a model, they call everything but `sleep` and `wake` together:
    `generate` with the same groups and sampling, and its samples taken to the end. Models that share experts
    call it equally often, each with different groups, possibly none.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: torch.dtype,
        max_sequences: int,
        max_length: int,
        cache_tokens: int | None = None,
        device: str = "cpu",
        ledger: MemoryLedger | None = None,
        groups: RolloutGroups | None = None,
        quantization: Quantization = "none",
        pictures: bool = False,
        towers: VisionTowers | None = None,
        keeps_routes: bool = False,
        text_ids: int | None = None,
    ) -> None:
        self.version = self.drawn = 0
        self.between: Callable[[], None] | None = None
        self.path = path
        self._rows, self._length = max_sequences, max_length
        self._tokens = max_sequences * max_length if cache_tokens is None else cache_tokens
        _check_cache(self._tokens, max_length)
        self._dtype, self._device, self._ledger = dtype, device, ledger
        self._replica = groups[RolloutPurpose.REPLICA] if groups is not None else None
        new = WeightFactory(dtype=dtype, device=device, int8=quantization == "int8")
        self._share: ModelShare = (
            FullModel(
                path,
                new=new,
                max_length=max_length,
                pictures=pictures,
                towers=towers,
                keeps_routes=keeps_routes,
                text_ids=text_ids,
            )
            if groups is None
            else RankShare(
                path,
                groups,
                new=new,
                max_length=max_length,
                pictures=pictures,
                towers=towers,
                keeps_routes=keeps_routes,
                text_ids=text_ids,
            )
        )
        if ledger is not None:
            live_tensors = [*tensors_in(self._share.views.values()), *self._tower.values()]
            ledger.track(MemoryKind.ROLLOUT_WEIGHTS, live_tensors)
        self._share.load(path)
        self._rounded = new.int8
        self._loaded_checksum: str | None = None
        self._cache: Tensor | None = None
        self.wake()

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        """Yield samples as they end, several at a time; each uid once.

        A sample that was begun continues with the same noise: generated in two parts by one version of the
        weights, it has the same tokens as in one. A response ends with the end token that stopped it. Raises
        ConfigError for a prompt that leaves no room for max_response_length. `load_weights` between two
        chunks, or by `between` between two tokens, takes effect at the next token.
        """
        assert self._cache is not None, "wake the engine before it generates"
        check_lengths(groups, sampling, self._length)
        if self._share.sight is None:
            assert not any(group.all_pictures for group in groups), (
                "the engine was made without pictures"
            )
        if groups:
            generation = self._start_generation(self._cache, groups, sampling)
            yield from generation.run(self._current_version)
        with torch.inference_mode():
            while self._share.model.idle():
                pass

    def _current_version(self) -> int:
        if self.between is not None:
            self.between()
        return self.version

    def _start_generation(
        self, cache: Tensor, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Generation:
        sizes = self._share.model.sizes
        layout = choose_layout(
            groups,
            sampling,
            tokens=self._tokens,
            max_sequences=self._rows,
            layer_token_bytes=layer_items(sizes) * self._dtype.itemsize,
        )
        cache_views = layout.views(cache, sizes)
        prompts = RowPrompts(cache_views) if layout.in_rows else SharedPrompts(cache_views)
        turns = begin_turns(sampling, self._replica)
        begun = groups if turns is None else turns.begin(groups)
        return Generation(
            share=self._share,
            slots=Slots(cache_views, prompts, sampling),
            waiting=WaitingSamples(self._share.model, begun, self._device, self._share.sight),
            sampling=sampling,
            eos=torch.tensor(sampling.eos_ids, dtype=torch.int64, device=self._device),
            count=self._count,
            turns=turns,
        )

    def _count(self, tokens: int) -> None:
        self.drawn += tokens

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replace all weights; names are Hugging Face's.

        weights: any float type, each copied as it arrives and not kept; of a generator, one is held at a
        time. Raises WeightsError with nothing changed for wrong names and shapes in a collection or in
        `AnnouncedWeights`. Where another iterable is wrong, or a source fails, the engine keeps the weights
        loaded until then, and is unusable until it gets all.
        """
        where = f"the rollout engine of {self.path}"
        incoming = checked_weights(weights, self._share.shapes, where=where)
        if self._rounded:
            digest = WeightsDigest(self._dtype)
            self._share.copy(digest.of(incoming))
            self._loaded_checksum = digest.hex()
        else:
            self._share.copy(incoming)
        self.version = version

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Shapes of the full model's weights by Hugging Face name."""
        return self._share.shapes

    def slices(self) -> dict[str, Tensor]:
        """Return this process' weights by Hugging Face name, the live tensors, including those of a trained
        vision tower; none in 8 bits."""
        return dict(floats(self._share.views)) | self._tower

    @property
    def _tower(self) -> dict[str, Tensor]:
        return self._share.sight.weights if self._share.sight is not None else {}

    def filled(self, version: int) -> None:
        """Set the version after all `slices` were filled in place."""
        self._forget()
        self.version = version

    def _forget(self) -> None:
        if self._share.sight is not None:
            self._share.sight.forget()

    def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probs at temperature 1 of each sequence's tokens from the second on, natural log. All
        sequences have one length. Ranks of a model, and models that share experts, call it together."""
        ids = torch.tensor(sequences, device=self._device)
        width = ids.shape[1] - 1
        with torch.inference_mode():
            logits = self._share.model.score(ids[:, :-1])
            logprobs = self._share.logprobs(logits, ids[:, 1:].reshape(-1))
            while self._share.model.idle():
                pass
        return [row.tolist() for row in torch.split(logprobs.cpu(), width)]

    def checksum(self) -> str:
        """Return `weights_checksum` of the full model's current weights. Where they are rounded to 8 bits, it
        is that of the loaded weights, in the engine's type."""
        if not self._rounded:
            return self._share.checksum()
        if self._loaded_checksum is None:
            self._loaded_checksum = weights_checksum(stored_weights(self.path), dtype=self._dtype)
        return self._loaded_checksum

    def sleep(self) -> None:
        """Free the KV cache, and a tower's cached features if its weights are freed with the others."""
        self._cache = None
        self._forget()

    def wake(self) -> None:
        """Allocate the KV cache again. Raises DeviceMemoryError if it does not fit."""
        if self._cache is not None:
            return
        self._cache = new_cache(
            self._share.model.sizes,
            tokens=self._tokens,
            dtype=self._dtype,
            device=self._device,
        )
        if self._ledger is not None:
            self._ledger.track(MemoryKind.KV_CACHE, [self._cache])
