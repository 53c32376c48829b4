"""A run's bottleneck, read from its folder. Called by `rljob analyze`; `analysis_text` shows what is
found."""

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
"""Steps at the beginning, in which engines and processes start."""
FEWEST_STEPS, MOST_STEPS = 2, 50
"""Steps after them that are looked at: as many as this at least, the last ones of more."""
SMALLEST_PART = 0.1
"""Share of a step from which on something is advised for a part."""
SMALLEST_SHOWN = 0.005
"""From which on it is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a step waits for one of PARTS. share: of the step's seconds."""

    name: str
    seconds: float
    share: float
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """parts: longest first, the bottleneck at the front. steps: first and last that were looked at. why_none:
    said where nothing can be advised."""

    name: str
    steps: tuple[int, int]
    seconds: float
    parts: Sequence[Part]
    advice: Sequence[Advice]
    why_none: str = ""

    @property
    def bottleneck(self) -> Part:
        """The part that costs most; of what is nobody's, only where nothing else is."""
        return next((part for part in self.parts if part.name != "other"), self.parts[0])


def analyze_run(folder: Path) -> Analysis:
    """Raises ConfigError for a folder without events, or with too few steps."""
    events, job_file = folder / "events.jsonl", folder / "rljob.yaml"
    if not events.is_file():
        raise ConfigError(f"{folder} holds no events.jsonl; name the folder of a run")
    history, numbers = _end_of(events)
    found = median_figures([step_figures(history, step) for step in numbers])
    parts = parts_of(found)
    why_none, advice = "", list[Advice]()
    try:
        job = resolve(load_job(job_file))
        advice = advise(found, job, parts=[p.name for p in parts if p.share >= SMALLEST_PART])
    except InvalidJob as error:
        why_none = f"no advice without the run's job: {error}"
    return Analysis(
        name=history.name,
        steps=(numbers[0], numbers[-1]),
        seconds=found.seconds,
        parts=parts,
        advice=advice,
        why_none=why_none,
    )


def _end_of(log: Path) -> tuple[RunHistory, list[int]]:
    """A history with all details of the steps that are looked at, which it names, and of the two before."""
    tail_bytes = TAIL_BYTES
    while True:
        history = RunHistory.read(log, tail_bytes=tail_bytes)
        numbers = looked_at(history)
        before = sorted(step for step in history.steps if step < numbers[0])[-2:]
        brief = any(isinstance(history.steps[s], BriefStep) for s in (*before, *numbers))
        if not brief:
            return history, numbers
        tail_bytes *= 4


def looked_at(history: RunHistory) -> list[int]:
    """Steps after the first. Raises ConfigError where there are too few."""
    numbers = sorted(history.steps)[LEFT_OUT:][-MOST_STEPS:]
    if len(numbers) < FEWEST_STEPS:
        raise ConfigError(
            f"{history.name} has {len(history.steps)} steps that are done, and its first is left out; "
            f"analysis needs {LEFT_OUT + FEWEST_STEPS} or more: let it run on, or raise spec.steps"
        )
    return numbers


def parts_of(figures: StepFigures) -> list[Part]:
    """All parts of a step that take noticeable time, longest first."""
    blamed, least = figures.blamed, SMALLEST_SHOWN * figures.seconds
    order = sorted((n for n in PARTS if blamed[n] >= least), key=lambda name: -blamed[name])
    return [
        Part(
            name=name,
            seconds=blamed[name],
            share=blamed[name] / figures.seconds,
            evidence=evidence_of(name, figures),
        )
        for name in order
    ]
