"""The generate state: prompts in, responses with their log-probs out.

Called by the device worker once a batch, on all devices of a replica. Finished samples go to the dock as
they come, so that rewards start while the rest is still being generated.
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
class Generate:
    """Generates one replica's shares. prompts: of a step, for the seeds of candidates. masked: whether a
    column says which tokens were drawn. outcomes: whether samples end with one, of a game or an agent.
    routed: whether a column has the tokens' experts. pictures: of prompts that show any."""

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
        """Generate every sample of the share: (number of the replica, their number).

        A sample does not depend on the share that it is in. Raises DockTimeout when prompts do not
        come, and DockError on all devices that generate together when one of them cannot read or write.
        """
        started = time.time()
        groups: list[PromptGroup] = []
        rows: dict[str, RowMeta] = {}
        waiting = Stopwatch()
        with waiting.running(), self.replica.agreed():
            if self.replica.leads:
                claim = self.dock.claim(
                    str(batch), share=share, timeout_seconds=self.timeout_seconds
                )
                groups = self._groups(batch, claim.rows, sampling)
                rows = {row.uid: row for row in claim.rows}
        made: list[Generated] = []
        writing, engine = Stopwatch(), self.replica.generating
        before = engine.seconds()

        def take(ended: Sequence[Generated]) -> None:
            with writing.running():
                self._write(rows, ended)
            made.extend(ended)

        self.replica.generate(groups, sampling, take)
        seconds = engine.seconds() - before - writing.seconds()
        assert len(made) == len(rows), f"the engine returned {len(made)} of {len(rows)} samples"
        tokens = sum(len(sample.logprobs) for sample in made)
        tools = tool_figures(made, sampling.tools) if sampling.tools else None
        games = game_figures(made, sampling.games) if sampling.games else None
        agents = agent_figures(made, sampling.agents) if sampling.agents else None
        return GenerateReport(
            samples=len(made),
            prompt_tokens=sum(len(group.token_ids) * len(group.uids) for group in groups),
            shown=picture_figures(
                self.pictures,
                ((group.token_ids, len(group.pictures), len(group.uids)) for group in groups),
            ),
            response_tokens=tokens,
            sample_tokens=tokens,
            lengths=Counter(len(sample.logprobs) for sample in made),
            clipped=sum(sample.finish == "length" for sample in made),
            tools=tools,
            games=games,
            agents=agents,
            span=StageSpan.since(
                started, own_work(made, seconds, tools, games, agents), waited=waiting.seconds()
            ),
        )

    def _groups(
        self, batch: BatchName, rows: Sequence[RowMeta], sampling: Sampling
    ) -> list[PromptGroup]:
        if not rows:  # fewer held-out prompts than replicas
            return []
        candidates = batch.kind == "candidates"
        more = ["position"] * candidates + ["task"] * self.outcomes
        columns = self.dock.read(rows, ["prompt", *more])
        prompts = columns["prompt"]
        shown = self.pictures.read(self.dock, rows) if self.pictures is not None else {}
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
                    pictures=shown.get(row.group, []),
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
            of_version = [made for made in finished if made.version == version]
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
    made: Sequence[Generated],
    seconds: float,
    tools: ToolFigures | None,
    games: GameFigures | None,
    agents: AgentFigures | None = None,
) -> DeviceWork | None:
    """Of a replica's first device. made: parts of a sample have its uid. seconds: in the engine, of which it
    had nothing to do but to wait for tools, games and agents in some."""
    drawn = Counter[str]()
    for sample in made:
        drawn[sample.uid] += len(sample.logprobs)
    if not drawn.total():
        return None
    idle = sum(figures.idle_seconds for figures in (tools, games, agents) if figures)
    passes = max(drawn.values())
    return DeviceWork(seconds=max(seconds - idle, 0.0), tokens=drawn.total(), passes=passes)


def picture_figures(
    reader: "PictureReader | None", prompts: Iterable[tuple[list[int], int, int]]
) -> PictureFigures | None:
    """None without a reader. prompts: token ids, number of pictures and of samples of each."""
    if reader is None:
        return None
    token, pictures, tokens = reader.processor.image_token, 0, 0
    for token_ids, shown, samples in prompts:
        pictures += shown
        tokens += token_ids.count(token) * samples
    return PictureFigures(pictures=pictures, tokens=tokens)


def tool_figures(made: Sequence[Generated], tools: ToolSettings) -> ToolFigures:
    """Sums over samples. Takes the idle time that `tools` has counted."""
    figures = ToolFigures(
        tokens=sum(len(sample.token_ids) - len(sample.logprobs) for sample in made),
        turns=sum(sample.turns for sample in made),
        cut=sum(sample.finish == "turns" for sample in made),
        idle_seconds=tools.idle.take(),
    )
    for call in (call for sample in made for call in sample.calls):
        figures.calls[call.tool] += 1
        figures.errors[call.tool] += call.outcome == "error"
        figures.timeouts[call.tool] += call.outcome == "timeout"
        figures.seconds[call.tool] = figures.seconds.get(call.tool, 0.0) + call.seconds
    return figures


def game_figures(made: Sequence[Generated], games: GameSettings) -> GameFigures:
    """Sums over samples. Takes the idle time that `games` has counted."""
    outcomes = [sample.outcome for sample in made if sample.outcome is not None]
    return GameFigures(
        tokens=sum(len(sample.token_ids) - len(sample.logprobs) for sample in made),
        turns=sum(sample.turns for sample in made),
        moves=sum(len(outcome.seconds) for outcome in outcomes),
        seconds=sum(sum(outcome.seconds) for outcome in outcomes),
        cut=sum(sample.finish == "turns" for sample in made),
        done=sum(outcome.done for outcome in outcomes),
        errors=sum(bool(outcome.error) for outcome in outcomes),
        idle_seconds=games.idle.take(),
    )


def agent_figures(made: Sequence[Generated], desk: AgentPlayers) -> AgentFigures:
    """Sums over samples. Takes the idle time and the tally that the desk has kept."""
    outcomes = [sample.outcome for sample in made if sample.outcome is not None]
    tally = desk.take_tally()
    return AgentFigures(
        tokens=sum(len(sample.token_ids) - len(sample.logprobs) for sample in made),
        turns=sum(sample.turns for sample in made),
        requests=tally.requests,
        left_out=tally.left_out,
        seconds=sum(sum(outcome.seconds) for outcome in outcomes),
        cut=sum(sample.finish != "stop" for sample in made),
        errors=sum(bool(outcome.error) for outcome in outcomes),
        idle_seconds=desk.idle.take(),
    )
