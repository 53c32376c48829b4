"""Rollout with vLLM, in this process: token ids in and out, weights replaced by its public API.

Created by the device worker for `rollout.engine: vllm`. Code specific to vLLM is in this file, `vllm_start`
and `vllm_sight` only. vLLM packs weights for its kernels, so the bytes that it holds cannot be compared; a
sync is verified by the log-probs of `sync_probe` instead. Runs do not repeat bitwise: a token's log-prob
depends on the other sequences of the batch.

A sample of several turns is one request a turn, whose prefix vLLM reads from its prefix cache. A tower is
outside of vLLM: its weights, where it is trained, are copied as they arrive.

A trap: on CPU vLLM packs the head separately from the embedding but reloads only the embedding where the two
are tied. So the engine declares them untied, and gets the tensor under both names.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.model.vision import language_part
from rljob_plan.resharding.boxes import TensorBox
from rljob_runtime.models.config import read_config
from rljob_runtime.models.tensor_files import HEAD
from rljob_runtime.models.tower import VisionTowers
from rljob_runtime.models.vision.names import module_name
from rljob_runtime.models.weight_stream import checked_weights
from rljob_runtime.models.weights import read_weights
from rljob_runtime.rollout.agents.agent_turns import AgentTurns
from rljob_runtime.rollout.partners import begin_turns
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, Sampling
from rljob_runtime.rollout.turns import Turns
from rljob_runtime.rollout.vllm_limits import (
    kv_cache_bytes_of,
    refuse_long,
    refuse_sampling,
)
from rljob_runtime.rollout.vllm_sight import vllm_sight
from rljob_runtime.rollout.vllm_slices import as_full_tensor
from rljob_runtime.rollout.vllm_start import VllmStart, device_type, mask_text_ids, start_vllm
from rljob_runtime.samples.seeds import derive_seed

if TYPE_CHECKING:
    from vllm import LLMEngine, RequestOutput, SamplingParams
    from vllm.inputs import PromptType

EMBEDDING = "model.embed_tokens.weight"


class VllmRollout:
    """A vLLM engine of one device, or of `tensor` devices that share the model; a `RolloutEngine`.

    path: Hugging Face directory; a tokenizer is neither needed nor read. dtype: of weights and KV cache.
    max_sequences: generated at the same time. max_length: prompt and response, in tokens. truncates: whether
    `generate` will be called with top-p or top-k; only at temperature 1, since vLLM returns log-probs either
    before the temperature or after the truncation. kv_cache_bytes: of one device, by default enough for
    max_sequences of max_length. threads: torch threads of this process, None leaves them. tensor: consecutive
    ranks of the default process group share the model. They create the engine together, and call everything
    but `sleep` and `wake` together, `generate` with the same groups and its samples taken to the end.
    replica: these ranks, where samples have several turns. int8: its linear layers hold their matrices in 8
    bits. pictures: whether prompts show any. towers: of the device. text_ids: ids from this one on are never
    sampled; None: all may be.

    Raises ConfigError if vLLM is not installed or cannot run the model, and for pictures without a tower.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: torch.dtype,
        max_sequences: int,
        max_length: int,
        seed: int,
        truncates: bool = False,
        kv_cache_bytes: int | None = None,
        threads: int | None = None,
        tensor: int = 1,
        replica: ProcessGroup | None = None,
        int8: bool = False,
        pictures: bool = False,
        towers: VisionTowers | None = None,
        text_ids: int | None = None,
    ) -> None:
        self.version = 0
        self._replica = replica
        self._asleep = False
        self._max_length = max_length
        self._truncates = truncates
        weights = read_weights(path)
        self._config, device = read_config(path), device_type()
        self._sight = (
            vllm_sight(path, dtype=dtype, device=device, towers=towers) if pictures else None
        )
        weights |= self._tower
        self._shapes = {name: weight.shape for name, weight in weights.items()}
        if threads is not None:
            torch.set_num_threads(threads)
        if kv_cache_bytes is None:
            kv_cache_bytes = kv_cache_bytes_of(
                language_part(self._config),
                dtype,
                max_sequences,
                max_length,
                tensor=tensor,
                device=device,
            )
        self._engine: LLMEngine = start_vllm(
            VllmStart(
                path=path,
                dtype=dtype,
                max_sequences=max_sequences,
                max_length=max_length,
                seed=seed,
                truncates=truncates,
                kv_cache_bytes=kv_cache_bytes,
                tensor=tensor,
                int8=int8,
            )
        )
        if text_ids is not None:
            self._engine.apply_model(partial(mask_text_ids, text_ids=text_ids))
        self.load_weights(weights.items(), version=0)

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        """Yield samples as they end, several at a time; each uid once.

        A response ends with the EOS token that stopped it. A sample that was begun uses other noise than one
        that is generated in one part. Raises ConfigError for a prompt that does not fit and for sampling that
        vLLM cannot do or cannot report correctly.
        """
        refuse_sampling(sampling, self._truncates)
        refuse_long(groups, sampling, self._max_length)
        if self._sight is None:
            assert not any(group.all_pictures for group in groups), (
                "the engine was made without pictures"
            )
        call = _GenerateCall(sampling, begin_turns(sampling, self._replica))
        try:
            self._add_requests(call, groups if call.turns is None else call.turns.begin(groups))
            while call.requests or call.pending:
                finished: list[Generated] = []
                if call.turns is not None and call.pending:
                    continued, finished = call.turns.answered(wait=not call.requests)
                    self._add_requests(call, continued)
                if call.requests:
                    finished += self._step(call)
                if finished:
                    yield finished
        finally:  # the caller may leave early
            self._engine.abort_request(sorted(call.requests))

    def probe(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probs at temperature 1 of each sequence's tokens from the second on, natural log.

        sequences: each of 2 tokens or more, and shorter than max_length.
        """
        from vllm import SamplingParams

        parameters = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False
        )
        for index, sequence in enumerate(sequences):
            self._engine.add_request(str(index), _token_prompt(sequence), parameters)
        logprobs: dict[str, list[float]] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                logprobs[output.request_id] = list(output.prompt_logprobs.logprobs)
        return [logprobs[str(index)] for index in range(len(sequences))]

    def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probs. See `probe`."""
        return self.probe(sequences)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replace all weights; names are Hugging Face's. Where it raises, as `checked_weights`, some are
        replaced.

        weights: any float dtype, each a full tensor; iterated once, and kept until a layer is complete.
        """
        self._reload(checked_weights(weights, self._shapes, where=f"version {version}"), version)

    def take_slices(self, slices: Iterable[tuple[TensorBox, Tensor]], *, version: int) -> None:
        """Replace all weights as `load_weights` does, from this rank's slices alone."""
        full_tensors = (
            (local_slice.tensor.name, as_full_tensor(local_slice, values))
            for local_slice, values in slices
        )
        self._reload(full_tensors, version)

    def checksum(self) -> str:
        """Return "", since vLLM holds packed weights. `sync_probe` verifies a sync instead."""
        return ""

    @property
    def sleeps(self) -> bool:
        """Whether `sleep` frees anything, so that `load_weights` and `wake` must follow it; not on CPU."""
        return torch.accelerator.is_available()

    def sleep(self) -> None:
        """Free the KV cache, and the weights without a copy; nothing on CPU, where vLLM cannot.

        `load_weights` allocates and loads the weights, and `wake` is called only then: a device never holds
        the cache and the buffers of a reshard at the same time.
        """
        if self.sleeps and not self._asleep:
            self._engine.sleep(level=2)
            self._asleep = True

    def wake(self) -> None:
        """Allocate the KV cache again; nothing on CPU, where vLLM cannot."""
        if self._asleep:
            self._engine.wake_up(tags=["kv_cache"])
            self._asleep = False

    def close(self) -> None:
        """Free everything, including the process group of the process: close it last."""
        self._engine.engine_core.shutdown()
        del self._engine

    @property
    def _tower(self) -> dict[str, Tensor]:
        return self._sight.weights if self._sight is not None else {}

    def _reload(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Reload the weights. vLLM rebuilds a layer's parameters when all of its weights have arrived, and
        incomplete ones at the end. So vLLM must consume the iterator to the end, whatever error occurs."""
        if self._asleep:
            self._engine.wake_up(tags=["weights"])
        errors: list[Exception] = []
        tower = self._tower

        def forwarded() -> Iterator[tuple[str, Tensor]]:
            try:
                for name, tensor in weights:
                    if name in tower:
                        tower[name].copy_(tensor)
                        continue
                    yield module_name(name, self._config), tensor
                    if name == EMBEDDING and HEAD not in self._shapes:
                        yield HEAD, tensor
            except Exception as error:  # raised again below
                errors.append(error)

        incoming = forwarded()
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": incoming})
        collections.deque(incoming, maxlen=0)
        if errors:
            raise errors[0]
        if self._sight is not None:
            self._sight.forget()
            self._engine.reset_encoder_cache()
        self._engine.reset_prefix_cache()
        self.version = version

    def _add_requests(self, call: "_GenerateCall", groups: Iterable[PromptGroup]) -> None:
        """Add a request for each sample's turn."""
        for group in groups:
            pictured = self._sight.input_of(group) if self._sight is not None else None
            for uid, seed in zip(group.uids, group.seeds, strict=True):
                request_id = f"{uid} {len(group.begun)}"
                call.requests[request_id] = _SampleRequest(group=group, uid=uid, seed=seed)
                parameters = _parameters(call.sampling, seed, group)
                self._engine.add_request(
                    request_id, pictured or _token_prompt(group.prefix), parameters
                )

    def _step(self, call: "_GenerateCall") -> list[Generated]:
        """Run one forward pass; return the samples that it ended."""
        ended: list[tuple[PromptGroup, int, Generated]] = []
        aborted: list[str] = []
        for output in self._engine.step():
            request_id = output.request_id
            stopped = call.stopped(output)
            if stopped and not output.finished:
                aborted.append(request_id)
            elif not output.finished:
                continue
            request = call.requests.pop(request_id)
            generated = _generated(output, request, stopped, call.sampling, self.version)
            ended.append((request.group, request.seed, generated))
        if aborted:
            self._engine.abort_request(aborted)
        return call.turns.take(ended) if call.turns else [generated for *_, generated in ended]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SampleRequest:
    """The sample of a request."""

    group: PromptGroup
    uid: str
    seed: int


class _GenerateCall:
    """One call of `generate`. requests: those that have not ended, by vLLM's name."""

    def __init__(self, sampling: Sampling, turns: Turns | AgentTurns | None) -> None:
        self.sampling, self.turns = sampling, turns
        self.requests: dict[str, _SampleRequest] = {}

    @property
    def pending(self) -> int:
        """The number of samples that wait for a reply."""
        return 0 if self.turns is None else self.turns.pending

    def stopped(self, output: "RequestOutput") -> bool:
        """Return whether the turn so far ends by its text, or with a call."""
        if not _is_watched(self.sampling):
            return False
        group, ids = self.requests[output.request_id].group, list(output.outputs[0].token_ids)
        turn = group.begun[group.turn :] + ids
        if self.sampling.stopped is not None and self.sampling.stopped(turn):
            return True
        return self.turns is not None and self.turns.may_end(lambda row: turn, ids[-1:]) == [True]


def _token_prompt(token_ids: Sequence[int]) -> "PromptType":
    return {"prompt_token_ids": list(token_ids)}


def _is_watched(sampling: Sampling) -> bool:
    """Return whether each token may end a turn that vLLM would continue."""
    return sampling.stopped is not None or sampling.tools is not None


def _parameters(sampling: Sampling, seed: int, group: PromptGroup) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind
    return SamplingParams(
        temperature=0.0 if sampling.greedy else sampling.temperature,
        top_p=1.0 if sampling.greedy else sampling.top_p,
        top_k=0 if sampling.greedy else sampling.top_k,
        # vLLM counts its noise from the request's start: the same seed would repeat the first tokens'.
        seed=derive_seed(seed, "after", len(group.begun)) if group.begun else seed,
        max_tokens=group.limit(sampling),
        stop_token_ids=list(sampling.eos_ids),
        ignore_eos=True,  # the model's configuration is ignored: eos_ids are all
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=kind.CUMULATIVE if _is_watched(sampling) else kind.FINAL_ONLY,
    )


def _generated(
    output: "RequestOutput",
    request: _SampleRequest,
    stopped: bool,
    sampling: Sampling,
    version: int,
) -> Generated:
    completion = output.outputs[0]
    token_ids = list(completion.token_ids)
    stopped = stopped or completion.finish_reason != "length"
    return Generated(
        uid=request.uid,
        token_ids=token_ids,
        logprobs=list(completion.logprobs.logprobs),
        finish=request.group.finish(stopped, len(token_ids), sampling),
        version=version,
    )
