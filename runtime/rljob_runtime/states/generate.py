"""The generate state: prompts in, responses with their log-probs out.

Called by the device worker once a batch. Finished samples go to the dock as they come, so that
rewards start while the rest is still being generated.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.batches import BatchName
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.engines.base import Generated, PromptGroup, RolloutEngine, Sampling
from rljob_runtime.seeds import derive_seed
from rljob_runtime.spans import Span
from rljob_runtime.states.reports import GenerateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Generates one worker's shares."""

    engine: RolloutEngine
    dock: DockClient
    run_seed: int
    timeout_seconds: float

    def run(self, batch: BatchName, sampling: Sampling, share: tuple[int, int]) -> GenerateReport:
        """Generate every sample of the share: (place among the rollout workers, their number).

        A sample does not depend on the share that it is in. Raises DockTimeout when prompts do not
        come.
        """
        started = time.time()
        claim = self.dock.claim(str(batch), share=share, timeout_seconds=self.timeout_seconds)
        groups = self._groups(batch, claim.rows)
        rows = {row.uid: row for row in claim.rows}
        samples = tokens = clipped = 0
        for finished in self.engine.generate(groups, sampling):
            self._write(rows, finished)
            samples += len(finished)
            tokens += sum(len(sample.token_ids) for sample in finished)
            clipped += sum(sample.finish == "length" for sample in finished)
        assert samples == len(rows), f"the engine returned {samples} of {len(rows)} samples"
        return GenerateReport(
            samples=samples,
            prompt_tokens=sum(len(group.token_ids) * len(group.uids) for group in groups),
            response_tokens=tokens,
            sample_tokens=tokens,
            clipped=clipped,
            span=Span.since(started),
        )

    def _groups(self, batch: BatchName, rows: Sequence[RowMeta]) -> list[PromptGroup]:
        prompts = self.dock.read(rows, ["prompt"])["prompt"]
        groups: dict[str, PromptGroup] = {}
        # An evaluation draws the same noise every time, so that its curve moves by the weights alone.
        step = batch.step if batch.kind == "train" else 0
        for i, row in enumerate(rows):
            if row.group not in groups:
                groups[row.group] = PromptGroup(
                    group=row.group, token_ids=prompts.row(i).tolist(), uids=[], seeds=[]
                )
            groups[row.group].uids.append(row.uid)
            groups[row.group].seeds.append(
                derive_seed(self.run_seed, batch.kind, step, row.group_index, row.sample)
            )
        return list(groups.values())

    def _write(self, rows: dict[str, RowMeta], finished: list[Generated]) -> None:
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
            version=finished[0].version,
        )
