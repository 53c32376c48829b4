"""The generate state: prompts in, responses with their log-probs out.

The device worker calls it once per batch, on all devices of a replica. Finished samples are written to the
dock immediately, so that rewards start while other samples are still being generated.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.record.reports import (
    AgentFigures,
    GameFigures,
    GenerateReport,
    PictureFigures,
    ToolFigures,
)
from rljob_runtime.record.spans import DeviceWork, StageSpan, Stopwatch
from rljob_runtime.rollout.rollout_engine import (
    AgentPlayers,
    GameSettings,
    Generated,
    PromptGroup,
    Sampling,
    ToolSettings,
)
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import OUTCOME, RESPONSE_MASK, ROUTES
from rljob_runtime.samples.seeds import derive_seed
from rljob_runtime.task.environments.game_columns import game_of, outcome_row
from rljob_runtime.worker.rollout_replica import RolloutReplica

if TYPE_CHECKING:
    from rljob_runtime.task.pictures.picture_columns import PictureReader


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateState:
    """Generates one replica's shares.

    prompts: of a step, for the seeds of candidates. masked: whether a column marks which tokens were drawn.
    outcomes: whether samples end with an outcome of a game or an agent. routed: whether a column has the
    tokens' experts. pictures: reads those of prompts that have any.
    """

    replica: RolloutReplica
    dock: DockClient
    run_seed: int
    prompts: int
    timeout_seconds: float
    masked: bool = False
    outcomes: bool = False
    routed: bool = False
    pictures: "PictureReader | None" = None

    def run(self, batch: BatchName, sampling: Sampling, share: tuple[int, int]) -> GenerateReport:
        """Generate every sample of the share: (number of the replica, number of replicas).

        A sample does not depend on the share that it is in. Raises DockTimeout if prompts do not arrive, and
        DockError on all devices that generate together if one of them cannot read or write.
        """
        started = time.time()
        groups: list[PromptGroup] = []
        rows: dict[str, RowMeta] = {}
        waiting = Stopwatch()
        with waiting.running(), self.replica.fail_together():
            if self.replica.leads:
                claim = self.dock.claim(
                    str(batch), share=share, timeout_seconds=self.timeout_seconds
                )
                groups = self._groups(batch, claim.rows, sampling)
                rows = {row.uid: row for row in claim.rows}
        generated: list[Generated] = []
        writing, engine = Stopwatch(), self.replica.generating
        before = engine.seconds()

        def take(finished: Sequence[Generated]) -> None:
            with writing.running():
                self._write(rows, finished)
            generated.extend(finished)

        self.replica.generate(groups, sampling, take)
        seconds = engine.seconds() - before - writing.seconds()
        assert len(generated) == len(rows), (
            f"the engine returned {len(generated)} of {len(rows)} samples"
        )
        tokens = sum(len(sample.logprobs) for sample in generated)
        tools = tool_figures(generated, sampling.tools) if sampling.tools else None
        games = game_figures(generated, sampling.games) if sampling.games else None
        agents = agent_figures(generated, sampling.agents) if sampling.agents else None
        return GenerateReport(
            samples=len(generated),
            prompt_tokens=sum(len(group.token_ids) * len(group.uids) for group in groups),
            shown=picture_figures(
                self.pictures,
                ((group.token_ids, len(group.pictures), len(group.uids)) for group in groups),
            ),
            response_tokens=tokens,
            sample_tokens=tokens,
            lengths=Counter(len(sample.logprobs) for sample in generated),
            clipped=sum(sample.finish == "length" for sample in generated),
            tools=tools,
            games=games,
            agents=agents,
            span=StageSpan.since(
                started,
                own_work(generated, seconds, tools, games, agents),
                waited=waiting.seconds(),
            ),
        )

    def _groups(
        self, batch: BatchName, rows: Sequence[RowMeta], sampling: Sampling
    ) -> list[PromptGroup]:
        if not rows:  # fewer held-out prompts than replicas
            return []
        candidates = batch.kind == "candidates"
        optional_columns = ["position"] * candidates + ["task"] * self.outcomes
        columns = self.dock.read(rows, ["prompt", *optional_columns])
        prompts = columns["prompt"]
        pictures_of_group = self.pictures.read(self.dock, rows) if self.pictures is not None else {}
        groups: dict[str, PromptGroup] = {}
        # An evaluation draws the same noise every time, so that its curve moves by the weights alone.
        step = batch.draw if batch.kind == "train" else 0
        for i, row in enumerate(rows):
            if row.group not in groups:
                groups[row.group] = PromptGroup(
                    group=row.group,
                    token_ids=prompts.row(i).tolist(),
                    uids=[],
                    seeds=[],
                    game=game_of(columns["task"].row(i)) if sampling.games else None,
                    task=columns["task"].row(i).tobytes().decode() if sampling.agents else "",
                    pictures=pictures_of_group.get(row.group, []),
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
        """Write finished samples; a row's version is that of its first token."""
        for version in {sample.version for sample in finished}:
            of_version = [generated for generated in finished if generated.version == version]
            self._write_of(version, rows, of_version)

    def _write_of(
        self, version: int, rows: dict[str, RowMeta], finished: Sequence[Generated]
    ) -> None:
        columns: dict[str, list[NDArray[Any]]] = {
            "response": [np.asarray(sample.token_ids, dtype=np.int32) for sample in finished],
            "rollout_logprobs": [
                np.asarray(sample.logprobs, dtype=np.float32) for sample in finished
            ],
        }
        if self.masked:
            columns[RESPONSE_MASK] = [
                np.asarray(sample.drawn, dtype=np.uint8) for sample in finished
            ]
        if self.routed:
            columns[ROUTES] = [np.frombuffer(sample.routes, dtype=np.uint8) for sample in finished]
        if self.outcomes:
            columns[OUTCOME] = [outcome_row(sample.outcome) for sample in finished]
        self.dock.write(
            [rows[sample.uid] for sample in finished],
            {name: Ragged.from_rows(values) for name, values in columns.items()},
            version=version,
        )


def own_work(
    generated: Sequence[Generated],
    seconds: float,
    tools: ToolFigures | None,
    games: GameFigures | None,
    agents: AgentFigures | None = None,
) -> DeviceWork | None:
    """Return the work of a replica's first device.

    generated: parts of a sample share its uid. seconds: in the engine, including time that it only waited for
    tools, games and agents.
    """
    drawn = Counter[str]()
    for sample in generated:
        drawn[sample.uid] += len(sample.logprobs)
    if not drawn.total():
        return None
    idle = sum(figures.idle_seconds for figures in (tools, games, agents) if figures)
    passes = max(drawn.values())
    return DeviceWork(seconds=max(seconds - idle, 0.0), tokens=drawn.total(), passes=passes)


def picture_figures(
    reader: "PictureReader | None", prompts: Iterable[tuple[list[int], int, int]]
) -> PictureFigures | None:
    """Return counts of pictures, None without a reader. prompts: token ids, number of pictures and of samples
    of each."""
    if reader is None:
        return None
    token, pictures, tokens = reader.processor.image_token, 0, 0
    for token_ids, num_pictures, samples in prompts:
        pictures += num_pictures
        tokens += token_ids.count(token) * samples
    return PictureFigures(pictures=pictures, tokens=tokens)


def tool_figures(generated: Sequence[Generated], tools: ToolSettings) -> ToolFigures:
    """Return sums over samples, and take the idle time that `tools` has counted."""
    figures = ToolFigures(
        tokens=sum(len(sample.token_ids) - len(sample.logprobs) for sample in generated),
        turns=sum(sample.turns for sample in generated),
        cut=sum(sample.finish == "turns" for sample in generated),
        idle_seconds=tools.idle.take(),
    )
    for call in (call for sample in generated for call in sample.calls):
        figures.calls[call.tool] += 1
        figures.errors[call.tool] += call.outcome == "error"
        figures.timeouts[call.tool] += call.outcome == "timeout"
        figures.seconds[call.tool] = figures.seconds.get(call.tool, 0.0) + call.seconds
    return figures


def game_figures(generated: Sequence[Generated], games: GameSettings) -> GameFigures:
    """Return sums over samples, and take the idle time that `games` has counted."""
    outcomes = [sample.outcome for sample in generated if sample.outcome is not None]
    return GameFigures(
        tokens=sum(len(sample.token_ids) - len(sample.logprobs) for sample in generated),
        turns=sum(sample.turns for sample in generated),
        moves=sum(len(outcome.seconds) for outcome in outcomes),
        seconds=sum(sum(outcome.seconds) for outcome in outcomes),
        cut=sum(sample.finish == "turns" for sample in generated),
        done=sum(outcome.done for outcome in outcomes),
        errors=sum(bool(outcome.error) for outcome in outcomes),
        idle_seconds=games.idle.take(),
    )


def agent_figures(generated: Sequence[Generated], desk: AgentPlayers) -> AgentFigures:
    """Return sums over samples, and take the idle time and the tally that the desk has counted."""
    outcomes = [sample.outcome for sample in generated if sample.outcome is not None]
    tally = desk.take_tally()
    return AgentFigures(
        tokens=sum(len(sample.token_ids) - len(sample.logprobs) for sample in generated),
        turns=sum(sample.turns for sample in generated),
        requests=tally.requests,
        left_out=tally.left_out,
        seconds=sum(sum(outcome.seconds) for outcome in outcomes),
        cut=sum(sample.finish != "stop" for sample in generated),
        errors=sum(bool(outcome.error) for outcome in outcomes),
        idle_seconds=desk.idle.take(),
    )
