"""Score complete groups from the dock in child processes.

Returns sums for the metrics and a few groups as text for the report. Rewards are written to the dock.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rljob_api.topology.devices import most_stale
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.dock.stats import DockTraffic
from rljob_runtime.errors import RewardError
from rljob_runtime.processes.actors.addresses import LiveAddress
from rljob_runtime.processes.actors.past_reports import PastReports
from rljob_runtime.processes.hangs.reporter import start_reporter
from rljob_runtime.prompts.passed_rows import passed_mark
from rljob_runtime.prompts.pool_rows import VERSIONS
from rljob_runtime.prompts.rounds import CandidateRound, Selection
from rljob_runtime.prompts.selection import (
    GROUP_COLUMNS,
    ROW_COLUMNS,
    ScoredGroup,
    batch_rows,
    has_signal,
    select_groups,
)
from rljob_runtime.record.event_types import Group, ShownPicture, ShownResponse, Tokens
from rljob_runtime.record.folders import Folder
from rljob_runtime.record.shown_pictures import shown_pictures
from rljob_runtime.record.shown_tokens import Response, shown_tokens
from rljob_runtime.record.spans import BatchTimer, StageSpan
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import (
    EXCLUDED,
    MODEL_SCORE,
    OUTCOME,
    PASSED,
    PICTURE_COLUMNS,
    RESPONSE_MASK,
    ROUTES,
    counts,
    evaluation_states,
    state_graph,
    written_bytes,
)
from rljob_runtime.task.environments.game_columns import outcome_of
from rljob_runtime.task.pictures.picture_columns import pixels_in
from rljob_runtime.task.rewards.model_score import with_score
from rljob_runtime.task.rewards.requests import last_turn
from rljob_runtime.task.rewards.scorer_pool import (
    RewardPool,
    RewardRequest,
    RewardResult,
    processes_of,
)
from rljob_runtime.task.tokenizer import cut_at_stop, load_tokenizer

SHOWN_GROUPS = 3
CLAIM_ROWS = 32
"""Number of rows of a claim; a group that is larger is claimed alone."""
OUTCOME_TYPES = ("environment", "agent")
"""Types of rewards that are read from a sample's outcome; a job has at most one of them."""


@dataclass(slots=True, kw_only=True)
class RewardReport:
    """The results of one reward worker on a batch.

    totals, passes, prompts: of each sample that counts, its reward, 1 where it passed the first reward,
    and its prompt's number. excluded: number of samples that do not count. failed: number of samples with
    an error in any reward. groups_with_signal: number of groups whose rewards differ. shown: groups as
    text, for the report. token_columns: columns from which their tokens are reported; none if they are
    not. selected: the selection of candidates, by the positions of their prompts.
    """

    totals: list[float] = field(default_factory=list)
    parts: Counter[str] = field(default_factory=Counter)
    passes: list[float] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    excluded: int = 0
    failed: int = 0
    groups: int = 0
    groups_with_signal: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    first_error: str = ""
    shown: list[Group] = field(default_factory=list)
    token_columns: tuple[str, ...] = ()
    selected: Selection = field(default_factory=Selection)
    span: StageSpan | None = None


class RewardWorker:
    """Scores groups until the batch is complete, and selects candidates."""

    has_children: ClassVar = True

    def __init__(
        self, job_json: str, model: Folder, base_dir: Path, dock: LiveAddress, index: int
    ) -> None:
        start_reporter(f"reward-{index}", dock.first, self._facts)
        spec = ResolvedJob.model_validate_json(job_json).spec
        self._spec = spec
        chosen = getattr(spec.algorithm.params, "dynamic_sampling", None)
        self._signal = chosen.signal if chosen else "reward"
        self._stop = list(spec.data.stop)
        self._mask = [RESPONSE_MASK] if spec.has_turns else []
        self._versions = (VERSIONS,) if spec.flow.partial_rollout else ()
        self._one_version = (
            spec.flow.mode != "async"
        )  # otherwise new weights arrive during generation
        self._timeout = spec.flow.stage_timeout_seconds
        self._primary = spec.rewards[0]
        self._on_error = {reward.name: reward.on_error for reward in spec.rewards}
        self._tokenizer = load_tokenizer(model.local_path())
        self._model = next((r for r in spec.rewards if r.type == "model"), None)
        self._outcome = next((r for r in spec.rewards if r.type in OUTCOME_TYPES), None)
        computed = ("model", *OUTCOME_TYPES)  # before the sample arrives here
        rules = [reward for reward in spec.rewards if reward.type not in computed]
        self._pool = RewardPool(rules, spec.data, processes=processes_of(rules), base_dir=base_dir)
        self._dock = DockClient(dock, state="reward", owner=f"reward-{index}")
        self._past = PastReports.of(spec)

    def _facts(self) -> dict[str, Any]:
        """Return facts about this worker for a hang report; called in another thread."""
        pool: RewardPool | None = getattr(self, "_pool", None)  # not set while this starts
        return {"children": pool.stacks() if pool is not None else {}}

    def score(self, batch: BatchName) -> RewardReport:
        """Score until every row of the batch has a reward.

        Raises RewardError if a score failed and the job stops at failures, and GuardStop if a response
        has changed the scorer.
        """
        token_columns = ("rollout_logprobs", *self._versions) if batch.kind == "train" else ()
        report, work = RewardReport(token_columns=token_columns), BatchTimer()
        while True:
            with work.waiting():
                claim = self._dock.claim(
                    str(batch),
                    limit=CLAIM_ROWS,
                    whole_groups=True,
                    timeout_seconds=self._timeout,
                )
            if claim.rows:
                work.begin()
                self._score_rows(claim.rows, report, trains=batch.kind == "train")
                report.span = work.span()
            if claim.done:
                self._pool.end_batch()
                return self._past.keep("reward", batch, report)

    def past_report(self, stage: str, batch: BatchName) -> object:
        """Return the past report on a batch, after earlier calls have ended. Raises WorkerError."""
        return self._past.get(stage, batch)

    def select(self, round_: CandidateRound) -> RewardReport:
        """Score a round of candidates, and put groups into the step's batch and the next one's."""
        report = RewardReport(token_columns=("rollout_logprobs", *self._versions))
        scored, work = list[ScoredGroup](), BatchTimer()
        while True:
            with work.waiting():
                claim = self._dock.claim(
                    str(round_.rows),
                    limit=CLAIM_ROWS,
                    whole_groups=True,
                    timeout_seconds=self._timeout,
                )
            work.begin()
            for _, members in groupby(claim.rows, key=lambda row: row.group):
                scored.append(self._score_candidate(list(members), report))
            if claim.done:
                break
        self._pool.end_batch()
        scored.sort(key=lambda group: group.rows[0].group_index)
        chosen = select_groups(
            [group.signal for group in scored],
            missing=round_.missing,
            fill=round_.fill,
            last=self._last(scored, round_),
        )
        self._put(round_.batch, round_.filled, [scored[i] for i in chosen.taken])
        if round_.next_batch is not None:
            self._put(round_.next_batch, 0, [scored[i] for i in chosen.left_over])
        report.selected = chosen.with_positions([group.position for group in scored])
        report.span = work.span()
        return self._past.keep("reward", round_.rows, report)

    def _last(self, scored: Sequence[ScoredGroup], round_: CandidateRound) -> set[int]:
        """Return the groups that no later step can take: all of the last step's, and those too old for
        the next step."""
        if round_.next_batch is None:
            return {*range(len(scored))}
        oldest = round_.batch.step - most_stale(self._spec)
        return {i for i, group in enumerate(scored) if group.oldest < oldest}

    def _score_candidate(self, rows: Sequence[RowMeta], report: RewardReport) -> ScoredGroup:
        routes = [ROUTES] if self._spec.update.router_replay else []
        carried = [*ROW_COLUMNS, *self._mask, *routes, *self._versions]
        columns = self._dock.read(rows, [*GROUP_COLUMNS, *carried])
        group_columns = {name: columns[name].row(0).copy() for name in GROUP_COLUMNS}
        if self._spec.model.vision is not None:
            shown = self._dock.read(rows[:1], PICTURE_COLUMNS)
            group_columns |= {name: shown[name].row(0).copy() for name in PICTURE_COLUMNS}
        results = self._score_group(rows, report, trains=True)  # which frees the rows
        rewards = [result.total for result in results]
        passes = [self._passed(result) for result in results]
        return ScoredGroup(
            rows=rows,
            shared=group_columns,
            columns=[
                {name: columns[name].row(i).copy() for name in carried} for i in range(len(rows))
            ],
            rewards=rewards,
            signal=has_signal(rewards, passes, by=self._signal),
        )

    def _put(self, batch: BatchName, first: int, groups: Sequence[ScoredGroup]) -> None:
        """Put groups into a step's batch, starting at this index."""
        sizes = self._spec.batch
        passed = evaluation_states(self._spec)
        later = tuple(n for n in state_graph(self._spec).names if n not in passed)
        reserve = written_bytes(self._spec, states=later)
        rows = [
            row
            for index, group in enumerate(groups, first)
            for row in batch_rows(batch, index, group, reserve_bytes=reserve)
        ]
        if rows:
            total = sizes.global_batch_size * sizes.samples_per_prompt
            self._dock.put_rows(str(batch), rows, total=total, states=later)

    def traffic(self) -> dict[str, DockTraffic]:
        """Return the traffic through the dock since the last call."""
        return {"reward": self._dock.take_traffic()}

    def close(self) -> None:
        """End the child processes."""
        self._pool.close()

    def _score_rows(self, rows: Sequence[RowMeta], report: RewardReport, *, trains: bool) -> None:
        """Score group by group, so that each group's rewards are available as early as possible."""
        for _, members in groupby(rows, key=lambda row: row.group):
            self._score_group(list(members), report, trains=trains)

    def _score_group(
        self, rows: Sequence[RowMeta], report: RewardReport, *, trains: bool
    ) -> list[RewardResult]:
        scored = [MODEL_SCORE] * (self._model is not None) + [OUTCOME] * (self._outcome is not None)
        is_shown = len(report.shown) < SHOWN_GROUPS
        token_columns = report.token_columns if is_shown else ()
        columns = self._dock.read(rows, ["task", "response", *self._mask, *scored, *token_columns])
        pictures = self._pictures(rows[0]) if is_shown else None  # before the rows are freed
        requests = []
        for i in range(len(rows)):
            task = json.loads(columns["task"].row(i).tobytes())
            ids = columns["response"].row(i).tolist()
            before, last = ids[:0], ids
            if self._mask:
                begins = last_turn(columns[RESPONSE_MASK].row(i).tolist())
                before, last = ids[:begins], ids[begins:]
            response = cut_at_stop(self._tokenizer.decode(last), self._stop)
            transcript = self._tokenizer.decode(before) + response
            requests.append(RewardRequest(response=response, transcript=transcript, **task))
        results = self._pool.score(requests)
        if self._model is not None:
            scores = [float(row[0]) for row in columns[MODEL_SCORE].rows()]
            results = [
                with_score(result, self._model, score)
                for result, score in zip(results, scores, strict=True)
            ]
        if self._outcome is not None:
            outcomes = [outcome_of(row.tobytes()) for row in columns[OUTCOME].rows()]
            results = [
                with_score(result, self._outcome, reward, error=error)
                for result, (reward, error) in zip(results, outcomes, strict=True)
            ]
        results = self._without_failed(results, trains=trains)
        columns_to_write: dict[str, list[NDArray[Any]]] = {
            "reward": [np.asarray([result.total], dtype=np.float32) for result in results]
        }
        if self._spec.data.difficulty_filter is not None:
            columns_to_write[PASSED] = [
                passed_mark(passed=self._passed(result), failed=bool(result.errors))
                for result in results
            ]
        self._dock.write(
            rows, {name: Ragged.from_rows(each) for name, each in columns_to_write.items()}
        )
        self._add(rows, requests, results, columns, report, pictures=pictures)
        return results

    def _without_failed(
        self, results: Sequence[RewardResult], *, trains: bool
    ) -> list[RewardResult]:
        """Replace failed rewards in a group's results by EXCLUDED if their reward is configured so.

        All are excluded if fewer than two of a training group would remain. Raises RewardError like
        `score`.
        """
        failed = [{self._on_error[name]: name for name in result.errors} for result in results]
        for result, failures in zip(results, failed, strict=True):
            if "stop" in failures:
                raise RewardError(
                    f"a score failed: {result.errors[failures['stop']]} (spec.rewards[].onError: stop)"
                )
        excluded = ["exclude" in failures for failures in failed]
        left = excluded.count(False)
        if trains and any(excluded) and left < 2:
            excluded = [True] * len(excluded)
        return [
            replace(result, total=EXCLUDED) if out else result
            for result, out in zip(results, excluded, strict=True)
        ]

    def _pictures(self, row: RowMeta) -> list[ShownPicture] | None:
        """Return the pictures of the row's prompt as they are shown in the report, or None without
        any."""
        if self._spec.model.vision is None:
            return None
        columns = self._dock.read([row], PICTURE_COLUMNS)
        return shown_pictures(pixels_in({name: columns[name].row(0) for name in columns})) or None

    def _add(
        self,
        rows: Sequence[RowMeta],
        requests: Sequence[RewardRequest],
        results: Sequence[RewardResult],
        columns: Mapping[str, Ragged],
        report: RewardReport,
        *,
        pictures: list[ShownPicture] | None,
    ) -> None:
        """Add one group's results to the report. pictures: those of its prompt, if the group is shown."""
        for row, result in zip(rows, results, strict=True):
            if counts(result.total):
                report.totals.append(result.total)
                report.passes.append(float(self._passed(result)))
                report.prompts.append(row.group_index)
                report.parts.update(result.parts)
            else:
                report.excluded += 1
            report.failed += bool(result.errors)
            report.errors.update(list(result.errors))
            if result.errors and not report.first_error:
                report.first_error = next(iter(result.errors.values()))
        report.groups += 1
        report.groups_with_signal += len({r.total for r in results if counts(r.total)}) > 1
        if len(report.shown) == SHOWN_GROUPS:
            return
        tokens: Sequence[Tokens | None] = [None] * len(rows)
        if report.token_columns:
            drawn = [self._response(row, i, columns) for i, row in enumerate(rows)]
            rewards = [result.total if counts(result.total) else 0.0 for result in results]
            tokens = shown_tokens(drawn, rewards, texts=self._tokenizer.texts)
        lengths = columns["response"].lengths.tolist()
        responses = [
            ShownResponse(
                text=request.transcript,
                reward=result.total if counts(result.total) else None,
                parts={**result.parts},
                length=length,
                tokens=shown,
            )
            for request, result, length, shown in zip(
                requests, results, lengths, tokens, strict=True
            )
        ]
        first = requests[0]
        report.shown.append(
            Group(
                prompt=first.prompt,
                pictures=pictures,
                answer=first.answer,
                responses=responses,
            )
        )

    def _response(self, row: RowMeta, i: int, columns: Mapping[str, Ragged]) -> Response:
        ids = columns["response"].row(i).tolist()
        logprobs = columns["rollout_logprobs"].row(i).tolist()
        versions = [row.version] * len(logprobs) if self._one_version else []
        return Response(
            ids=ids,
            drawn=columns[RESPONSE_MASK].row(i).tolist() if self._mask else [True] * len(ids),
            logprobs=logprobs,
            version=row.version,
            versions=columns[VERSIONS].row(i).tolist() if VERSIONS in columns else versions,
        )

    def _passed(self, result: RewardResult) -> bool:
        needed = 1.0 if self._primary.threshold is None else self._primary.threshold
        return result.parts.get(self._primary.name, 0.0) >= needed
