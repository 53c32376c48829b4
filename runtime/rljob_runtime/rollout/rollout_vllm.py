"""Rollout with vLLM, in this process: token ids in and out, weights replaced by its public API.

Made by the device worker for `rollout.engine: vllm`. What is vLLM's own stays in this file, `vllm_start` and
`vllm_sight`. vLLM packs weights for its kernels, so the bytes that it holds cannot be compared; a sync is
verified by the log-probs of `sync_probe` instead. Runs do not repeat bitwise: a token's log-prob depends on
what else is in the batch.

A sample of several turns is a request a turn, whose prefix vLLM finds in its cache. A tower is not vLLM's:
its weights, where it is trained, are taken as they come.

A trap: on CPU vLLM packs the head apart from the embedding but reloads only the embedding where the
two are tied, so it is told that they are not, and gets the tensor under both names.
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
from rljob_runtime.rollout.vllm_slices import as_whole
from rljob_runtime.rollout.vllm_start import Start, device_type, leave_out, start_vllm
from rljob_runtime.samples.seeds import derive_seed

if TYPE_CHECKING:
    from vllm import LLMEngine, RequestOutput, SamplingParams
    from vllm.inputs import PromptType

EMBEDDING = "model.embed_tokens.weight"


class VllmRollout:
    """A vLLM engine of one device, or of `tensor` devices that share the model; a `RolloutEngine`.

    path: Hugging Face directory; a tokenizer is neither needed nor read. dtype: of weights and KV
    cache. max_sequences: generated at the same time. max_length: prompt and response, in tokens.
    truncates: whether `generate` will be called with top-p or top-k; only at temperature 1, since
    vLLM returns log-probs either before the temperature or after the cut. kv_cache_bytes: of one device,
    by default enough for max_sequences of max_length. threads: torch threads of this process, None
    leaves them. tensor: consecutive ranks of the default process group share the model; they make the
    engine together, and call everything but `sleep` and `wake` together, `generate` with the same groups
    and its samples taken to the end. replica: these ranks, where samples have several turns. int8: its
    linear layers hold their matrices in 8 bits. pictures: whether prompts show any. towers: of the device.
    text_ids: ids from this one on are never drawn; None: all may be.
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
            Start(
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
            self._engine.apply_model(partial(leave_out, text_ids=text_ids))
        self.load_weights(weights.items(), version=0)

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        """Yield samples as they end, several at a time; each uid once.

        A response ends with the EOS token that stopped it. A sample that was begun draws noise of its
        own, which is not that of one in one part. Raises ConfigError for a prompt that
        does not fit and for sampling that vLLM cannot do or not report rightly.
        """
        refuse_sampling(sampling, self._truncates)
        refuse_long(groups, sampling, self._max_length)
        if self._sight is None:
            assert not any(group.all_pictures for group in groups), (
                "the engine was made without pictures"
            )
        call = _Call(sampling, begin_turns(sampling, self._replica))
        try:
            self._ask(call, groups if call.turns is None else call.turns.begin(groups))
            while call.asked or call.pending:
                finished: list[Generated] = []
                if call.turns is not None and call.pending:
                    going_on, finished = call.turns.answered(wait=not call.asked)
                    self._ask(call, going_on)
                if call.asked:
                    finished += self._step(call)
                if finished:
                    yield finished
        finally:  # the caller may leave early
            self._engine.abort_request(sorted(call.asked))

    def probe(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs at temperature 1 of each sequence's tokens from the second on, natural log.

        sequences: each of 2 tokens or more, and shorter than max_length.
        """
        from vllm import SamplingParams

        parameters = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False
        )
        for index, sequence in enumerate(sequences):
            self._engine.add_request(str(index), _words(sequence), parameters)
        found: dict[str, list[float]] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                found[output.request_id] = list(output.prompt_logprobs.logprobs)
        return [found[str(index)] for index in range(len(sequences))]

    def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """As `probe`."""
        return self.probe(sequences)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replace all weights; names are Hugging Face's. Where it raises, as `checked_weights`, some are
        replaced.

        weights: any float dtype, each tensor whole; gone through once, and kept until a layer is complete.
        """
        self._reload(checked_weights(weights, self._shapes, where=f"version {version}"), version)

    def take_slices(self, slices: Iterable[tuple[TensorBox, Tensor]], *, version: int) -> None:
        """As `load_weights`, by this rank's slices alone."""
        whole = ((piece.tensor.name, as_whole(piece, own)) for piece, own in slices)
        self._reload(whole, version)

    def checksum(self) -> str:
        """Empty: vLLM holds packed weights. `sync_probe` verifies a sync instead."""
        return ""

    @property
    def sleeps(self) -> bool:
        """Whether `sleep` frees anything, so that `load_weights` and `wake` must follow it; not on CPU."""
        return torch.accelerator.is_available()

    def sleep(self) -> None:
        """Free the KV cache, and the weights without a copy; nothing on CPU, where vLLM cannot.

        `load_weights` makes room for weights and brings them, and only then `wake` comes: a device never
        holds the cache and what a reshard needs at a time.
        """
        if self.sleeps and not self._asleep:
            self._engine.sleep(level=2)
            self._asleep = True

    def wake(self) -> None:
        """Make the KV cache again; nothing on CPU, where vLLM cannot."""
        if self._asleep:
            self._engine.wake_up(tags=["kv_cache"])
            self._asleep = False

    def close(self) -> None:
        """Free everything, the process group of the whole process included: close it last."""
        self._engine.engine_core.shutdown()
        del self._engine

    @property
    def _tower(self) -> dict[str, Tensor]:
        return self._sight.weights if self._sight is not None else {}

    def _reload(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """A layer's parameters are made anew when all of its weights are there, and what is half there when
        they end: vLLM is let to its end, whatever happens on the way to it."""
        if self._asleep:
            self._engine.wake_up(tags=["weights"])
        failed: list[Exception] = []
        tower = self._tower

        def going_on() -> Iterator[tuple[str, Tensor]]:
            try:
                for name, tensor in weights:
                    if name in tower:
                        tower[name].copy_(tensor)
                        continue
                    yield module_name(name, self._config), tensor
                    if name == EMBEDDING and HEAD not in self._shapes:
                        yield HEAD, tensor
            except Exception as error:  # raised again below
                failed.append(error)

        arriving = going_on()
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": arriving})
        collections.deque(arriving, maxlen=0)
        if failed:
            raise failed[0]
        if self._sight is not None:
            self._sight.forget()
            self._engine.reset_encoder_cache()
        self._engine.reset_prefix_cache()
        self.version = version

    def _ask(self, call: "_Call", groups: Iterable[PromptGroup]) -> None:
        """A request for each sample's turn."""
        for group in groups:
            pictured = self._sight.input_of(group) if self._sight is not None else None
            for uid, seed in zip(group.uids, group.seeds, strict=True):
                request = f"{uid} {len(group.begun)}"
                call.asked[request] = _Asked(group=group, uid=uid, seed=seed)
                parameters = _parameters(call.sampling, seed, group)
                self._engine.add_request(request, pictured or _words(group.prefix), parameters)

    def _step(self, call: "_Call") -> list[Generated]:
        """One forward pass; the samples that it ended."""
        ended: list[tuple[PromptGroup, int, Generated]] = []
        aborted: list[str] = []
        for output in self._engine.step():
            request = output.request_id
            stopped = call.stopped(output)
            if stopped and not output.finished:
                aborted.append(request)
            elif not output.finished:
                continue
            asked = call.asked.pop(request)
            made = _generated(output, asked, stopped, call.sampling, self.version)
            ended.append((asked.group, asked.seed, made))
        if aborted:
            self._engine.abort_request(aborted)
        return call.turns.take(ended) if call.turns else [made for *_, made in ended]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Of which sample a request is."""

    group: PromptGroup
    uid: str
    seed: int


class _Call:
    """One of `generate`. asked: requests that have not ended, by vLLM's name."""

    def __init__(self, sampling: Sampling, turns: Turns | AgentTurns | None) -> None:
        self.sampling, self.turns = sampling, turns
        self.asked: dict[str, _Asked] = {}

    @property
    def pending(self) -> int:
        """Samples that wait for what follows a turn."""
        return 0 if self.turns is None else self.turns.pending

    def stopped(self, output: "RequestOutput") -> bool:
        """Whether the turn so far ends by its text, or with a call."""
        if not _is_watched(self.sampling):
            return False
        group, ids = self.asked[output.request_id].group, list(output.outputs[0].token_ids)
        turn = group.begun[group.turn :] + ids
        if self.sampling.stopped is not None and self.sampling.stopped(turn):
            return True
        return self.turns is not None and self.turns.may_end(lambda row: turn, ids[-1:]) == [True]


def _words(token_ids: Sequence[int]) -> "PromptType":
    return {"prompt_token_ids": list(token_ids)}


def _is_watched(sampling: Sampling) -> bool:
    """Whether each token may end a turn that vLLM would go on with."""
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
        ignore_eos=True,  # the model's configuration has no say: eos_ids are all
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=kind.CUMULATIVE if _is_watched(sampling) else kind.FINAL_ONLY,
    )


def _generated(
    output: "RequestOutput", asked: _Asked, stopped: bool, sampling: Sampling, version: int
) -> Generated:
    completion = output.outputs[0]
    token_ids = list(completion.token_ids)
    stopped = stopped or completion.finish_reason != "length"
    return Generated(
        uid=asked.uid,
        token_ids=token_ids,
        logprobs=list(completion.logprobs.logprobs),
        finish=asked.group.finish(stopped, len(token_ids), sampling),
        version=version,
    )
