"""A run's bottleneck, read from its folder. Called by `rljob analyze`; `analysis_text` displays the
result."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api.check.load import load_job
from rljob_api.spec.problems import InvalidJob
from rljob_api.topology.resolved import resolve
from rljob_runtime.errors import ConfigError
from rljob_runtime.record.events import BriefStep
from rljob_runtime.report.analysis.advice import advise
from rljob_runtime.report.analysis.evidence import evidence_of
from rljob_runtime.report.analysis.remedies import Advice
from rljob_runtime.report.analysis.step_figures import (
    PARTS,
    StepFigures,
    median_figures,
    step_figures,
)
from rljob_runtime.report.display.history import TAIL_BYTES, RunHistory

LEFT_OUT = 1
"""Steps at the beginning that are skipped, because engines and processes start in them."""
FEWEST_STEPS, MOST_STEPS = 2, 50
"""Fewest and most steps after them that are analyzed; of more, the last ones."""
SMALLEST_PART = 0.1
"""Smallest share of a step for which advice is given."""
SMALLEST_SHOWN = 0.005
"""Smallest share of a step that is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """The time that a step waits for one of PARTS. share: of the step's seconds."""

    name: str
    seconds: float
    share: float
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The result of an analysis.

    parts: longest first, so that the bottleneck is at the front. steps: first and last analyzed step.
    no_advice_reason: set if no advice can be given.
    """

    name: str
    steps: tuple[int, int]
    seconds: float
    parts: Sequence[StepPart]
    advice: Sequence[Advice]
    no_advice_reason: str = ""

    @property
    def bottleneck(self) -> StepPart:
        """The longest part; `other` only if it is the only one."""
        return next((group for group in self.parts if group.name != "other"), self.parts[0])


def analyze_run(folder: Path) -> Analysis:
    """Analyze the run of a folder. Raises ConfigError for a folder without events, or with too few steps."""
    events, job_file = folder / "events.jsonl", folder / "rljob.yaml"
    if not events.is_file():
        raise ConfigError(f"{folder} holds no events.jsonl; name the folder of a run")
    history, numbers = _end_of(events)
    figures = median_figures([step_figures(history, step) for step in numbers])
    parts = parts_of(figures)
    no_advice_reason, advice = "", list[Advice]()
    try:
        job = resolve(load_job(job_file))
        advice = advise(figures, job, parts=[p.name for p in parts if p.share >= SMALLEST_PART])
    except InvalidJob as error:
        no_advice_reason = f"no advice without the run's job: {error}"
    return Analysis(
        name=history.name,
        steps=(numbers[0], numbers[-1]),
        seconds=figures.seconds,
        parts=parts,
        advice=advice,
        no_advice_reason=no_advice_reason,
    )


def _end_of(log: Path) -> tuple[RunHistory, list[int]]:
    """Read a history with all details of the analyzed steps and the two before, and return those steps."""
    tail_bytes = TAIL_BYTES
    while True:
        history = RunHistory.read(log, tail_bytes=tail_bytes)
        numbers = analyzed_steps(history)
        before = sorted(step for step in history.steps if step < numbers[0])[-2:]
        brief = any(isinstance(history.steps[s], BriefStep) for s in (*before, *numbers))
        if not brief:
            return history, numbers
        tail_bytes *= 4


def analyzed_steps(history: RunHistory) -> list[int]:
    """Return the steps to analyze, without the first. Raises ConfigError if there are too few."""
    numbers = sorted(history.steps)[LEFT_OUT:][-MOST_STEPS:]
    if len(numbers) < FEWEST_STEPS:
        raise ConfigError(
            f"{history.name} has {len(history.steps)} steps that are done, and its first is left out; "
            f"analysis needs {LEFT_OUT + FEWEST_STEPS} or more: let it run on, or raise spec.steps"
        )
    return numbers


def parts_of(figures: StepFigures) -> list[StepPart]:
    """Return all parts of a step that take noticeable time, longest first."""
    blame, least = figures.blame, SMALLEST_SHOWN * figures.seconds
    order = sorted((n for n in PARTS if blame[n] >= least), key=lambda name: -blame[name])
    return [
        StepPart(
            name=name,
            seconds=blame[name],
            share=blame[name] / figures.seconds,
            evidence=evidence_of(name, figures),
        )
        for name in order
    ]
