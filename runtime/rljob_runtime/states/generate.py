"""The generate state: prompts in, responses with their log-probs out.

Called by the device worker once a batch, on all devices of a replica. Finished samples go to the dock as
they come, so that rewards start while the rest is still being generated.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.batches import BatchName
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.engines.base import Generated, PromptGroup, Sampling
from rljob_runtime.seeds import derive_seed
from rljob_runtime.spans import Span
from rljob_runtime.states.reports import GenerateReport
from rljob_runtime.states.rollout_replica import RolloutReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Generates one replica's shares. prompts: of a step, for the seeds of candidates."""

    replica: RolloutReplica
    dock: DockClient
    run_seed: int
    prompts: int
    timeout_seconds: float

    def run(self, batch: BatchName, sampling: Sampling, share: tuple[int, int]) -> GenerateReport:
        """Generate every sample of the share: (number of the replica, their number).

        A sample does not depend on the share that it is in. Raises DockTimeout when prompts do not
        come, and DockError on all devices that generate together when one of them cannot read or write.
        """
        started = time.time()
        groups: list[PromptGroup] = []
        rows: dict[str, RowMeta] = {}
        with self.replica.agreed():
            if self.replica.leads:
                claim = self.dock.claim(
                    str(batch), share=share, timeout_seconds=self.timeout_seconds
                )
                groups = self._groups(batch, claim.rows)
                rows = {row.uid: row for row in claim.rows}
        made: list[Generated] = []

        def take(ended: Sequence[Generated]) -> None:
            self._write(rows, ended)
            made.extend(ended)

        self.replica.generate(groups, sampling, take)
        assert len(made) == len(rows), f"the engine returned {len(made)} of {len(rows)} samples"
        tokens = sum(len(sample.token_ids) for sample in made)
        return GenerateReport(
            samples=len(made),
            prompt_tokens=sum(len(group.token_ids) * len(group.uids) for group in groups),
            response_tokens=tokens,
            sample_tokens=tokens,
            clipped=sum(sample.finish == "length" for sample in made),
            span=Span.since(started),
        )

    def _groups(self, batch: BatchName, rows: Sequence[RowMeta]) -> list[PromptGroup]:
        candidates = batch.kind == "candidates"
        columns = self.dock.read(rows, ["prompt", *(["position"] if candidates else [])])
        prompts = columns["prompt"]
        groups: dict[str, PromptGroup] = {}
        # An evaluation draws the same noise every time, so that its curve moves by the weights alone.
        step = batch.draw if batch.kind == "train" else 0
        for i, row in enumerate(rows):
            if row.group not in groups:
                groups[row.group] = PromptGroup(
                    group=row.group, token_ids=prompts.row(i).tolist(), uids=[], seeds=[]
                )
            groups[row.group].uids.append(row.uid)
            kind, index = batch.kind, row.group_index
            if candidates:  # the seed of a run without dynamic sampling
                before, index = divmod(int(columns["position"].row(i)[0]), self.prompts)
                kind, step = "train", before + 1
            groups[row.group].seeds.append(
                derive_seed(self.run_seed, kind, step, index, row.sample)
            )
        return list(groups.values())

    def _write(self, rows: dict[str, RowMeta], finished: Sequence[Generated]) -> None:
        """A row's version is that of its first token."""
        for version in {sample.version for sample in finished}:
            self._write_of(version, rows, [made for made in finished if made.version == version])

    def _write_of(
        self, version: int, rows: dict[str, RowMeta], finished: Sequence[Generated]
    ) -> None:
        self.dock.write(
            [rows[sample.uid] for sample in finished],
            {
                "response": Ragged.from_rows(
                    [np.asarray(sample.token_ids, dtype=np.int32) for sample in finished]
                ),
                "rollout_logprobs": Ragged.from_rows(
                    [np.asarray(sample.logprobs, dtype=np.float32) for sample in finished]
                ),
            },
            version=version,
        )
