"""Rollout in plain torch: a KV cache with rows, prompts computed once a group, rows refilled.

Made by the device worker for `rollout.engine: torch`. Finished sequences leave the batch at once
and waiting ones take their rows in order; the same groups, weights and sampling give bitwise the
same output. Which ranks share the model is known to `model_share` alone.
"""

# B sequences, G groups, P longest prompt, V vocabulary of this process, S rows

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rljob_runtime.backends.ledger import MemoryKind, MemoryLedger
from rljob_runtime.engines.base import Generated, PromptGroup, RolloutEngine, Sampling
from rljob_runtime.engines.model_share import ModelShare, WholeModel
from rljob_runtime.engines.parallel_rollout.groups import RolloutGroups
from rljob_runtime.engines.parallel_rollout.share import RankShare
from rljob_runtime.engines.sampling import uniforms
from rljob_runtime.engines.slots import Slots, new_cache
from rljob_runtime.engines.waiting import Waiting, check_lengths
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import UnsupportedArchitecture
from rljob_runtime.models.fused.weights import New, tensors_in
from rljob_runtime.models.weights import stored_weights, weights_checksum

Quantization = Literal["none", "int8"]
REFILL_SHARE = 8  # rows are refilled once 1/8 of them are free: one prefill for several


def make_torch_rollout(
    path: Path,
    *,
    dtype: torch.dtype,
    max_sequences: int,
    max_length: int,
    device: str = "cpu",
    ledger: MemoryLedger | None = None,
    groups: RolloutGroups | None = None,
    quantization: Quantization = "none",
) -> RolloutEngine:
    """An engine for the directory's model: `TorchRollout`, or `TransformersRollout` for other models.

    max_sequences: generated at the same time. max_length: prompt and response, in tokens. groups: of the
    ranks that share the model; None for one rank. quantization: of the layers' matrices. Raises
    ConfigError and WeightsError as `load_policy` does, and ConfigError for degrees that the model cannot
    have.
    """
    try:
        return TorchRollout(
            path,
            dtype=dtype,
            max_sequences=max_sequences,
            max_length=max_length,
            device=device,
            ledger=ledger,
            groups=groups,
            quantization=quantization,
        )
    except UnsupportedArchitecture as error:
        _check_transformers(path, error, groups, quantization)
        from rljob_runtime.engines.rollout_transformers import TransformersRollout

        return TransformersRollout(
            path, dtype=dtype, max_sequences=max_sequences, max_length=max_length, device=device
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


class TorchRollout:
    """A `RolloutEngine` for the families of `models.families`.

    Arguments as in `make_torch_rollout`. Raises UnsupportedArchitecture for other models. Where ranks
    share a model, they call everything but `sleep` and `wake` together: `generate` with the same groups
    and sampling, its samples taken to the end; models that share experts call it equally often, each with
    groups of its own, maybe none.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: torch.dtype,
        max_sequences: int,
        max_length: int,
        device: str = "cpu",
        ledger: MemoryLedger | None = None,
        groups: RolloutGroups | None = None,
        quantization: Quantization = "none",
    ) -> None:
        self.version = 0
        self._path = path
        self._rows, self._length = max_sequences, max_length
        self._dtype, self._device, self._ledger = dtype, device, ledger
        new = New(dtype=dtype, device=device, int8=quantization == "int8")
        self._share: ModelShare = (
            WholeModel(path, new=new, max_length=max_length)
            if groups is None
            else RankShare(path, groups, new=new, max_length=max_length)
        )
        if ledger is not None:
            ledger.track(MemoryKind.ROLLOUT_WEIGHTS, tensors_in(self._share.views.values()))
        self._share.load(path)
        self._rounded = new.int8
        self._taken: str | None = None
        self._cache: Tensor | None = None
        self.wake()

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        """Yield samples as they end, several at a time; each uid once.

        A sample that was begun goes on with the noise that it would have had: made in two parts by
        one version of the weights, it has the tokens of one. A response ends with the end token that
        stopped it. Raises ConfigError for a prompt that leaves no room for max_response_length.
        `load_weights` between two chunks takes effect at the next token; a sample's version is the
        one that it began with.
        """
        assert self._cache is not None, "wake the engine before it generates"
        check_lengths(groups, sampling, self._length)
        model = self._share.model
        batch = _Batch(
            share=self._share,
            slots=Slots(self._cache, sampling),
            waiting=Waiting(model, groups, self._device),
            sampling=sampling,
            eos=torch.tensor(sampling.eos_ids, dtype=torch.int64, device=self._device),
        )
        at_once = max(1, self._rows // REFILL_SHARE)
        finished: list[Generated] = []
        while batch.waiting.left or batch.slots.seats:
            with torch.inference_mode():
                finished += batch.step(refill=at_once, version=self.version)
            if len(finished) >= at_once:
                yield finished
                finished = []
        if finished:
            yield finished
        with torch.inference_mode():
            while model.idle():
                pass

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replace all weights; names are Hugging Face's. Changes nothing if it raises WeightsError.

        weights: any float type, read during the call, not kept.
        """
        tensors = {name: tensor.detach() for name, tensor in weights}
        self._share.copy(tensors, where=f"the rollout engine of {self._path}")
        if self._rounded:
            self._taken = weights_checksum(tensors.items(), dtype=self._dtype)
        self.version = version

    def checksum(self) -> str:
        """`weights_checksum` of the weights as held, of the whole model; where they are rounded to 8 bits,
        of those that were taken, in the engine's type."""
        if not self._rounded:
            return self._share.checksum()
        if self._taken is None:
            self._taken = weights_checksum(stored_weights(self._path), dtype=self._dtype)
        return self._taken

    def sleep(self) -> None:
        """Free the KV cache."""
        self._cache = None

    def wake(self) -> None:
        """Make the KV cache again. Raises DeviceMemoryError if it does not fit."""
        if self._cache is not None:
            return
        self._cache = new_cache(
            self._share.model.sizes,
            rows=self._rows,
            length=self._length,
            dtype=self._dtype,
            device=self._device,
        )
        if self._ledger is not None:
            self._ledger.track(MemoryKind.KV_CACHE, [self._cache])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One call of `generate`. eos: end tokens. stops at sampling's limits and not before."""

    share: ModelShare
    slots: Slots
    waiting: Waiting
    sampling: Sampling
    eos: Tensor

    def step(self, *, refill: int, version: int) -> list[Generated]:
        """One token for every running sequence; first tokens for new ones once `refill` rows are free."""
        finished: list[Generated] = []
        slots, waiting = self.slots, self.waiting
        if waiting.left and slots.num_free >= min(refill, waiting.left):
            while waiting.left and slots.num_free:
                admitted = waiting.admit(slots.num_free, version)
                finished += self._advance(slots.add(admitted), admitted.logits_BV)
        if slots.seats:
            running = slice(0, len(slots.seats))
            slots.window += 1
            logits_BV = self.share.model.decode(
                slots.last_S[running], slots.lengths_S[running], slots.cache, slots.window
            )
            slots.lengths_S[running] += 1
            finished += self._advance(running, logits_BV)
        return finished

    def _advance(self, rows: slice, logits_BV: Tensor) -> list[Generated]:
        """Draw a token for each of these rows; returns the responses that it ends."""
        slots, sampling = self.slots, self.sampling
        uniforms_B = uniforms(slots.seeds_S[rows], slots.begun_S[rows] + slots.counts_S[rows])
        tokens_B, logprobs_B = self.share.draw(logits_BV, uniforms_B, sampling)
        slots.append(rows, tokens_B, logprobs_B)
        stopped_B = torch.isin(tokens_B, self.eos)
        if sampling.stopped is not None:
            texts = (
                slots.seats[row].group.begun + slots.response(row)[0]
                for row in range(rows.start, rows.stop)
            )
            stopped_B |= torch.tensor([sampling.stopped(text) for text in texts]).to(
                self.eos.device
            )
        ended_B = stopped_B | (slots.counts_S[rows] >= slots.limits_S[rows])
        ended = (ended_B.nonzero()[:, 0] + rows.start).tolist()
        if not ended:
            return []
        stopped = stopped_B.tolist()
        finished = [self._generated(row, stopped[row - rows.start]) for row in ended]
        slots.remove(ended)
        return finished

    def _generated(self, row: int, stopped: bool) -> Generated:
        token_ids, logprobs = self.slots.response(row)
        seat = self.slots.seats[row]
        return Generated(
            uid=seat.uid,
            token_ids=token_ids,
            logprobs=logprobs,
            finish=seat.group.finish(stopped, len(token_ids), self.sampling),
            version=seat.version,
        )
