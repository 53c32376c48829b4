"""The reward worker: scores complete groups from the dock in child processes.

Returns sums for the metrics and a few groups as text for the report; rewards go to the dock.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import ray

from rljob_api.rljob import RLJob
from rljob_runtime.actors.whereabouts import LiveAddress
from rljob_runtime.batches import BatchName
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.dock.stats import Traffic
from rljob_runtime.folders import Folder
from rljob_runtime.models.tokenizer import cut_at_stop, load_tokenizer
from rljob_runtime.rewards.pool import RewardPool, RewardRequest, RewardResult
from rljob_runtime.spans import Span

SHOWN_GROUPS = 3
CLAIM_GROUPS = 32


@dataclass(slots=True, kw_only=True)
class RewardReport:
    """What one reward worker scored of a batch.

    totals, passes, prompts: of each sample, its reward, 1 where it passed the first reward, and its
    prompt's number. failed: samples with an error in any reward.
    groups_with_signal: groups whose rewards differ. shown: groups as text, for the report.
    """

    totals: list[float] = field(default_factory=list)
    parts: Counter[str] = field(default_factory=Counter)
    passes: list[float] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    failed: int = 0
    groups: int = 0
    groups_with_signal: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    first_error: str = ""
    shown: list[dict[str, Any]] = field(default_factory=list)
    span: Span | None = None


@ray.remote
class RewardWorker:
    """Scores groups until the batch is done."""

    def __init__(
        self, job_json: str, model: Folder, base_dir: Path, dock: LiveAddress, index: int
    ) -> None:
        spec = RLJob.model_validate_json(job_json).spec
        self._stop = list(spec.data.stop)
        self._timeout = spec.flow.stage_timeout_seconds
        self._primary = spec.rewards[0]
        self._tokenizer = load_tokenizer(model.here())
        self._pool = RewardPool(spec.rewards, spec.data, processes=1, base_dir=base_dir)
        self._dock = DockClient(dock, state="reward", owner=f"reward-{index}")

    def score(self, batch: BatchName) -> RewardReport:
        """Score until every row of the batch has a reward."""
        report, started = RewardReport(), 0.0
        while True:
            claim = self._dock.claim(
                str(batch),
                limit=CLAIM_GROUPS,
                whole_groups=True,
                timeout_seconds=self._timeout,
            )
            if claim.rows:
                started = started or time.time()
                self._score_rows(claim.rows, report)
                report.span = Span.since(started)
            if claim.done:
                return report

    def traffic(self) -> dict[str, Traffic]:
        """What it moved through the dock since the last call."""
        return {"reward": self._dock.take_traffic()}

    def close(self) -> None:
        """End the child processes."""
        self._pool.close()

    def _score_rows(self, rows: Sequence[RowMeta], report: RewardReport) -> None:
        """Group by group: who waits for the rewards gets each as soon as it is there."""
        for _, members in groupby(rows, key=lambda row: row.group):
            self._score_group(list(members), report)

    def _score_group(self, rows: Sequence[RowMeta], report: RewardReport) -> None:
        columns = self._dock.read(rows, ["task", "response"])
        requests = []
        for i in range(len(rows)):
            task = json.loads(columns["task"].row(i).tobytes())
            text = self._tokenizer.decode(columns["response"].row(i).tolist())
            requests.append(RewardRequest(response=cut_at_stop(text, self._stop), **task))
        results = self._pool.score(requests)
        self._dock.write(
            rows,
            {
                "reward": Ragged.from_rows(
                    [np.asarray([result.total], dtype=np.float32) for result in results]
                )
            },
        )
        self._add(rows, requests, results, columns["response"].lengths.tolist(), report)

    def _add(
        self,
        rows: Sequence[RowMeta],
        requests: Sequence[RewardRequest],
        results: Sequence[RewardResult],
        lengths: Sequence[int],
        report: RewardReport,
    ) -> None:
        """Add one group's results."""
        for row, result in zip(rows, results, strict=True):
            report.totals.append(result.total)
            report.passes.append(float(self._passed(result)))
            report.prompts.append(row.group_index)
            report.failed += bool(result.errors)
            report.parts.update(result.parts)
            report.errors.update(list(result.errors))
            if result.errors and not report.first_error:
                report.first_error = next(iter(result.errors.values()))
        report.groups += 1
        report.groups_with_signal += len({result.total for result in results}) > 1
        if len(report.shown) == SHOWN_GROUPS:
            return
        report.shown.append(
            {
                "prompt": requests[0].prompt,
                "answer": requests[0].answer,
                "responses": [
                    {
                        "text": request.response,
                        "reward": result.total,
                        "parts": result.parts,
                        "length": length,
                    }
                    for request, result, length in zip(requests, results, lengths, strict=True)
                ],
            }
        )

    def _passed(self, result: RewardResult) -> bool:
        needed = 1.0 if self._primary.threshold is None else self._primary.threshold
        return result.parts.get(self._primary.name, 0.0) >= needed - 1e-9
