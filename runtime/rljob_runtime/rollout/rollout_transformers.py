"""Rollout of any Hugging Face causal language model: correct rather than fast.

Created by `make_torch_rollout` for architectures that the `torch` engine does not compute. Prompts are padded
on the left, a batch runs until its last sequence ends, and the next batch follows.
"""

# B sequences, P longest prompt

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from rljob_runtime.models.transformers_model import TransformersModel
from rljob_runtime.models.weights import check_weights, weights_checksum
from rljob_runtime.rollout.rollout_engine import Finish, Generated, PromptGroup, Sampling
from rljob_runtime.rollout.sampling import draw, uniforms
from rljob_runtime.rollout.waiting import check_lengths


class TransformersRollout:
    """A `RolloutEngine` for other models; arguments as in `make_torch_rollout`."""

    def __init__(
        self,
        path: Path,
        *,
        dtype: torch.dtype,
        max_sequences: int,
        max_length: int,
        device: str = "cpu",
        text_ids: int | None = None,
    ) -> None:
        self.version = self.drawn = 0
        self.between: Callable[[], None] | None = None
        self._path, self._rows, self._length = path, max_sequences, max_length
        self._device, self._text_ids = device, text_ids
        self._policy = TransformersModel.from_path(path, dtype=dtype).to(device)

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        """Yield the samples of one batch after another; each uid once. Behaves as `TorchRollout.generate`.

        Raises ConfigError for a prompt that leaves no room for max_response_length.
        """
        check_lengths(groups, sampling, self._length)
        samples = [
            (group, uid, seed)
            for group in groups
            for uid, seed in zip(group.uids, group.seeds, strict=True)
        ]
        for first in range(0, len(samples), self._rows):
            batch = samples[first : first + self._rows]
            if self.between is not None:
                self.between()
            with torch.inference_mode():
                finished = self._run(batch, sampling)
            yield finished

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replace all weights; names are Hugging Face's. Changes nothing if it raises WeightsError."""
        tensors = {name: tensor.detach() for name, tensor in weights}
        parameters = dict(self._policy.named_hf_parameters())
        check_weights(
            tensors,
            {name: parameter.shape for name, parameter in parameters.items()},
            where=f"the rollout engine of {self._path}",
        )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])
        self.version = version

    def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probs. See `TorchRollout.token_logprobs`."""
        ids = torch.tensor(sequences, device=self._device)
        with torch.inference_mode():
            logits = self._policy.model(input_ids=ids[:, :-1]).logits[..., : self._text_ids].float()
            logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        rows: list[list[float]] = logprobs.cpu().tolist()
        return rows

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Shapes of the model's weights by Hugging Face name."""
        return {name: weight.shape for name, weight in self._policy.named_hf_parameters()}

    def checksum(self) -> str:
        """Return `weights_checksum` of the engine's weights."""
        return weights_checksum(self._policy.named_hf_parameters())

    def sleep(self) -> None:
        """Do nothing: a cache lives no longer than its batch."""

    def wake(self) -> None:
        """Do nothing: each batch allocates its cache."""

    def _run(
        self, samples: Sequence[tuple[PromptGroup, str, int]], sampling: Sampling
    ) -> list[Generated]:
        version = self.version
        running = [_RunningSample(uid=uid, group=group) for group, uid, _ in samples]
        seeds_B = torch.tensor([seed for _, _, seed in samples], device=self._device)
        offsets_B = torch.tensor([len(g.begun) for g, _, _ in samples], device=self._device)
        tokens, mask = self._padded([group.prefix for group, _, _ in samples])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache()
        while not all(sample.finish for sample in running):
            output = self._policy.model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            tokens_B, logprobs_B = draw(
                output.logits[:, -1, : self._text_ids].float(),
                uniforms(seeds_B, offsets_B),
                sampling,
            )
            offsets_B = offsets_B + 1
            self.drawn += sum(sample.finish is None for sample in running)
            for sample, token, logprob in zip(
                running, tokens_B.tolist(), logprobs_B.tolist(), strict=True
            ):
                sample.append(token, logprob, sampling)
            tokens, positions = tokens_B[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(tokens)], dim=1)
        return [sample.generated(version) for sample in running]

    def _padded(self, prompts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return tokens and attention mask [B, P], padded on the left."""
        width = max(len(prompt) for prompt in prompts)
        tokens = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        return torch.tensor(tokens, device=self._device), torch.tensor(mask, device=self._device)


@dataclass(slots=True, kw_only=True)
class _RunningSample:
    """The new tokens of a sample; finish: None while it runs."""

    uid: str
    group: PromptGroup
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None

    def append(self, token: int, logprob: float, sampling: Sampling) -> None:
        """Append one more token, unless the sample has ended."""
        if self.finish:
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        text = self.group.begun + self.tokens
        stopped = token in sampling.eos_ids or bool(sampling.stopped and sampling.stopped(text))
        if stopped or len(self.tokens) >= self.group.limit(sampling):
            self.finish = self.group.finish(stopped, len(self.tokens), sampling)

    def generated(self, version: int) -> Generated:
        """Return the sample, which has ended."""
        assert self.finish, "the sample still runs"
        return Generated(
            uid=self.uid,
            token_ids=self.tokens,
            logprobs=self.logprobs,
            finish=self.finish,
            version=version,
        )
