"""Inference of a model on existing samples: the states reference, teacher, values and reward-model.

Each reads the responses of its replica's share as they arrive, and writes a column. The model is on the
update devices: the frozen starting policy, a teacher, the critic that is being trained, or a reward model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rljob_api.spec.evaluation import Evaluation, EvaluationSet
from rljob_api.topology.resolved import ResolvedBatch
from rljob_runtime.devices.host_swap import OffloadedTensors
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.devices.own_time import PassTimer
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.record.kept_logprobs import LogprobCache, row_key
from rljob_runtime.record.spans import BatchTimer, DeviceWork, StageSpan
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.samples.tensors import array_of, ragged_of
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.worker.agree import any_of, fail_together
from rljob_runtime.worker.micro_batches import count_tokens, score
from rljob_runtime.worker.samples import read_samples
from rljob_runtime.worker.share import claim_in_order
from rljob_runtime.worker.shared_reading import read_together

if TYPE_CHECKING:
    from rljob_runtime.task.pictures.picture_columns import PictureReader

AdaptSamples = Callable[[SampleBatch], SampleBatch]


def with_end(padding: int | None) -> AdaptSamples:
    """Return a function that adds a token to each sample, so that its last value is a sequence classifier's
    score.

    padding: the classifier's padding token, which transformers ignores at the end of a sequence.
    """

    def adapt(samples: SampleBatch) -> SampleBatch:
        trimmed = [row[: _without(row, padding)] for row in samples.responses]
        return replace(samples, responses=[torch.cat([row, row.new_zeros(1)]) for row in trimmed])

    return adapt


def _without(row: Tensor, padding: int | None) -> int:
    """Return the number of tokens up to the last that is not padding."""
    indices = (row != padding).nonzero() if padding is not None else None
    if indices is None:
        return len(row)
    return int(indices[-1]) + 1 if len(indices) else 0


@dataclass(slots=True, kw_only=True)
class InferenceState:
    """Scores one replica's share. ranks: of the model's layout. temperature: of log-probs.

    column: the written column: a value per response token or, with `adapt`, of the last token of each adapted
    sample. masked: whether responses contain tokens of tools, which are read and not scored. pass_groups: of
    one forward pass. resting: the weights, if they are on the host between uses. ready: called before each
    pass; a reference that shares the policy's weights then has them on the device. kept: log-probs that need
    not be recomputed, if there are any. pictures: reads those of prompts that have any.
    """

    model: PolicyModel
    column: str
    dock: DockClient
    ranks: UpdateRanks
    temperature: float
    sizes: ResolvedBatch
    evaluation: Evaluation | None
    pass_groups: int
    timeout_seconds: float
    adapt: AdaptSamples | None = None
    masked: bool = False
    ledger: MemoryLedger | None = None
    resting: OffloadedTensors | None = None
    stored_logprobs: LogprobCache | None = None
    pictures: "PictureReader | None" = None
    ready: Callable[[], None] = lambda: None
    _passes: PassTimer = field(init=False, default_factory=PassTimer)

    def run(self, batch: BatchName, groups: range | None = None) -> StageSpan:
        """Write the column for the share as its responses arrive.

        groups: of the batch; None: those of a step or an evaluation. Raises DeviceMemoryError.
        """
        groups = groups or range(self._num_prompts(batch))
        if self.resting is None:
            return self._run(batch, groups)
        if self.ledger is not None:
            self.ledger.require(MemoryKind.REFERENCE_WEIGHTS, self.resting.num_bytes)
        self.resting.back()
        self.resting.ready()
        try:
            return self._run(batch, groups)
        finally:
            self.resting.release()  # the host has them still

    def _run(self, batch: BatchName, groups: range) -> StageSpan:
        work, self._passes = BatchTimer(), PassTimer()
        if self.stored_logprobs is not None and self.ranks.leads:
            self.stored_logprobs.load_new_files()
        replica, replicas = self.ranks.share
        num_groups = sum(group % replicas == replica for group in groups)
        chunks = read_together(
            self.ranks,
            lambda: self._claims(batch, num_groups),
            lambda claimed: read_samples(
                self.dock, claimed, fields=(), masked=self.masked, pictures=self.pictures
            ),
            num_chunks=-(-num_groups // self.pass_groups),
        )
        for chunk in work.each(chunks):
            samples = self.adapt(chunk.samples) if self.adapt else chunk.samples
            scored = (
                self._known(self.stored_logprobs, samples)
                if self.stored_logprobs
                else self._scored(samples)
            )
            with fail_together(self.ranks.pass_group):
                if self.ranks.leads:
                    self.dock.write(chunk.rows, {self.column: scored})
        if self.stored_logprobs is not None:
            self.stored_logprobs.write_new_rows()
        return work.span(DeviceWork.of(self._passes))

    def _known(self, logprobs_store: LogprobCache, samples: SampleBatch) -> Ragged:
        """Return stored log-probs, or compute all rows of a pass on all of its ranks if one is missing."""
        names, stored = list[bytes](), None
        if self.ranks.leads:
            prompts = [samples.prompts[group] for group in samples.group_of_B.tolist()]
            sequences = zip(prompts, samples.responses, strict=True)
            names = [
                row_key(array_of(prompt), array_of(response)) for prompt, response in sequences
            ]
            stored = logprobs_store.find(names)
        if any_of(self.ranks.pass_group, self.ranks.leads and stored is None):
            scored = self._scored(samples)
            stored = logprobs_store.add(names, scored) if self.ranks.leads else None
        return Ragged.from_rows(stored or [])

    def _scored(self, samples: SampleBatch) -> Ragged:
        """Return what is written of each sample, float32."""
        self.ready()
        scored_T = score(
            samples,
            self._infer,
            tokens=self.sizes.micro_batch_tokens,
            group=self.ranks.everyone if self.ranks.passes_meet else None,
        )
        lengths_B = torch.tensor(samples.lengths, dtype=torch.int64)
        if self.adapt:
            return ragged_of(scored_T.float()[lengths_B.cumsum(0) - 1])
        return Ragged(values=array_of(scored_T.float()), lengths=array_of(lengths_B))

    def _infer(self, samples: SampleBatch) -> Tensor:
        tokens = 0 if self.ranks.in_stages else count_tokens(samples)
        with torch.no_grad(), self._passes.timed_pass(tokens):
            return self.model.logprobs(samples, temperature=self.temperature).logprobs_T.cpu()

    def _num_prompts(self, batch: BatchName) -> int:
        held_out = self._held_out(batch)
        return held_out.prompts if held_out else self.sizes.global_batch_size

    def _held_out(self, batch: BatchName) -> EvaluationSet | None:
        if batch.kind != "eval" or self.evaluation is None:
            return None
        return self.evaluation.set_of(batch.suite)

    def _claims(self, batch: BatchName, num_groups: int) -> Iterator[list[RowMeta]]:
        held_out = self._held_out(batch)
        return claim_in_order(
            self.dock,
            batch,
            self.ranks.share,
            num_groups=num_groups,
            pass_groups=self.pass_groups,
            pass_rows=self.pass_groups * (held_out or self.sizes).samples_per_prompt,
            timeout_seconds=self.timeout_seconds,
        )
