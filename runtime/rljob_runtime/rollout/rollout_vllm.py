"""Rollout with vLLM, in this process: token ids in and out, weights replaced by its public API.

Made by the device worker for `rollout.engine: vllm`. What is vLLM's own stays in this file and in
`vllm_start`. vLLM packs weights for its kernels, so the bytes that it holds cannot be compared; a sync
is verified by the log-probs of `sync_probe` instead. Runs do not repeat bitwise: a token's log-prob depends
on what else is in the batch.

A sample of several turns is a request a turn, whose prefix vLLM finds in its cache.

A trap: on CPU vLLM packs the head apart from the embedding but reloads only the embedding where the
two are tied, so it is told that they are not, and gets the tensor under both names.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.models.config import read_config
from rljob_runtime.models.tensor_files import HEAD
from rljob_runtime.models.weights import check_weights, read_weights
from rljob_runtime.rollout.partners import begin_turns
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, Sampling
from rljob_runtime.rollout.turns import Turns
from rljob_runtime.rollout.vllm_limits import (
    kv_cache_bytes_of,
    refuse_long,
    refuse_sampling,
)
from rljob_runtime.rollout.vllm_start import Start, start_vllm
from rljob_runtime.samples.seeds import derive_seed

if TYPE_CHECKING:
    from vllm import LLMEngine, RequestOutput, SamplingParams

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
    linear layers hold their matrices in 8 bits. Raises ConfigError if vLLM is not installed or cannot run
    the model.
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
    ) -> None:
        self.version = 0
        self._replica = replica
        self._asleep = False
        self._max_length = max_length
        self._truncates = truncates
        weights = read_weights(path)
        self._shapes = {name: weight.shape for name, weight in weights.items()}
        if threads is not None:
            torch.set_num_threads(threads)
        if kv_cache_bytes is None:
            kv_cache_bytes = kv_cache_bytes_of(
                read_config(path), dtype, max_sequences, max_length, tensor=tensor
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
        call = _Call(sampling, begin_turns(sampling, self._replica))
        try:
            self._ask(call, groups)
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
            self._add(str(index), sequence, parameters)
        found: dict[str, list[float]] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                found[output.request_id] = list(output.prompt_logprobs.logprobs)
        return [found[str(index)] for index in range(len(sequences))]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replace all weights; names are Hugging Face's. Changes nothing if it raises WeightsError.

        weights: any float dtype, each tensor whole; read during the call, not kept.
        """
        tensors = {name: tensor.detach() for name, tensor in weights}
        check_weights(tensors, self._shapes, where=f"version {version}")
        if self._asleep:
            self._engine.wake_up(tags=["weights"])
        if HEAD not in tensors:
            tensors[HEAD] = tensors[EMBEDDING]
        self._engine.collective_rpc(
            "reload_weights", kwargs={"weights_iterator": iter(tensors.items())}
        )
        self._engine.reset_prefix_cache()
        self.version = version

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

    def _add(self, uid: str, token_ids: Sequence[int], parameters: "SamplingParams") -> None:
        self._engine.add_request(uid, {"prompt_token_ids": list(token_ids)}, parameters)

    def _ask(self, call: "_Call", groups: Iterable[PromptGroup]) -> None:
        """A request for each sample's turn."""
        for group in groups:
            for uid, seed in zip(group.uids, group.seeds, strict=True):
                request = f"{uid} {len(group.begun)}"
                call.asked[request] = _Asked(group=group, uid=uid, seed=seed)
                self._add(request, group.prefix, _parameters(call.sampling, seed, group))

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

    def __init__(self, sampling: Sampling, turns: Turns | None) -> None:
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
