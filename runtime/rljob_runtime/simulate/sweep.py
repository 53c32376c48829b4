"""Simulate many jobs in turn, a row for each: one job with varied fields, or several jobs. The CLI calls
this.

A refused job also has a row, with the reason.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rljob_api.check.load import load_job, read_job
from rljob_api.check.yaml_text import parse_yaml
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.rljob import RLJob
from rljob_plan.plan import model_problems
from rljob_runtime.errors import RljobError
from rljob_runtime.report.analysis.advice import merge_change
from rljob_runtime.simulate.answers import Answers
from rljob_runtime.simulate.several import SimulationSettings, simulate_seeds

MOST_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """The row of one job. answers: None if it is refused, for these reasons."""

    name: str
    answers: Answers | None
    reasons: Sequence[str] = ()

    @property
    def idle(self) -> float:
        """Return the share of all devices' time in which they do not work."""
        return sum(self.answers.idle.values()) if self.answers else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Rows in the requested order."""

    rows: Sequence[SweepRow]

    @property
    def first(self) -> Answers | None:
        """Return the answers that others are compared with: the first that is not refused."""
        return next((row.answers for row in self.rows if row.answers), None)

    def linearity(self, row: SweepRow) -> float | None:
        """Return the tokens/s of a device relative to the first row: 1 if n times the devices are n times as
        fast.

        None if the job is refused.
        """
        if row.answers is None or self.first is None:
            return None
        return row.answers.tokens_per_second.mean / self.first.tokens_per_second.mean

    def json(self) -> dict[str, Any]:
        """Return the rows as JSON values."""
        return {"rows": [self._row(row) for row in self.rows]}

    def _row(self, row: SweepRow) -> dict[str, Any]:
        if row.answers is None:
            return {"name": row.name, "refused": list(row.reasons)}
        return {
            "name": row.name,
            "linearity": self.linearity(row),
            "idle": row.idle,
            "answers": row.answers.json(),
        }


def sweep_job(
    job: RLJob, texts: Iterable[str], *, base_dir: Path, settings: SimulationSettings
) -> Sweep:
    """Simulate the job with each combination of the values in `texts`, each `KEY=a,b`, see `changes_of`.

    Raises InvalidJob for a text that cannot be read, or more than MOST_ROWS combinations.
    """
    axes = [changes_of(text) for text in texts]
    combined = list(itertools.product(*axes))
    if len(combined) > MOST_ROWS:
        message = f"asks for {len(combined)} combinations; ask for {MOST_ROWS} at most"
        raise InvalidJob([Problem("--sweep", message)])
    manifest = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    fixed = {key for axis in axes if len(axis) == 1 for key in axis[0]}
    rows = []
    for axis_changes in combined:
        change = {key: value for axis_change in axis_changes for key, value in axis_change.items()}
        varied = change if len(combined) == 1 else [key for key in change if key not in fixed]
        name = " ".join(f"{key}={_shown(change[key])}" for key in varied)
        rows.append(_row(name, _changed(manifest, change), base_dir, settings))
    return Sweep(rows=rows)


def compare_jobs(files: Iterable[Path], *, settings: SimulationSettings) -> Sweep:
    """Simulate the jobs of these files. Raises InvalidJob for one that cannot be read."""
    jobs = [(file, load_job(file)) for file in files]
    return Sweep(rows=[_row(str(file), job, file.parent, settings) for file, job in jobs])


def changes_of(text: str) -> list[dict[str, Any]]:
    """Parse `KEY=a,b`: return the changes of each value, by path in the spec.

    `K1+K2=a+b,c+d` changes several keys together. Values are YAML; null removes a key. Raises InvalidJob.
    """
    key_text, equals, value_text = text.partition("=")
    keys = [key.strip().removeprefix("spec.") for key in key_text.split("+")]
    value_lists = [
        values.split("+") if len(keys) > 1 else [values] for values in value_text.split(",")
    ]
    if not equals or not all(keys) or not all(all(values) for values in value_lists):
        _refuse(text, "names no key with values; write accelerator.nodes=2,4,8 or the like")
    if any(len(values) != len(keys) for values in value_lists):
        _refuse(text, f"has {len(keys)} keys; write as many values each time: {key_text}=1+2,3+4")
    return [
        {
            key: parse_yaml(value, name=f"--sweep {key}")
            for key, value in zip(keys, values, strict=True)
        }
        for values in value_lists
    ]


def _refuse(text: str, message: str) -> NoReturn:
    raise InvalidJob([Problem("--sweep", f"{text!r} {message}")])


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _changed(manifest: Mapping[str, Any], change: Mapping[str, Any]) -> RLJob | InvalidJob:
    """Return the job with values at paths of its spec, or the reason why it is invalid."""
    for path, value in change.items():
        nested = value
        for key in reversed(f"spec.{path}".split(".")):
            nested = {key: nested}
        manifest = merge_change(manifest, nested)
    try:
        return read_job(manifest)
    except InvalidJob as invalid:
        return invalid


def _row(
    name: str, job: RLJob | InvalidJob, base_dir: Path, settings: SimulationSettings
) -> SweepRow:
    try:
        if isinstance(job, InvalidJob):
            raise job
        if problems := model_problems(job, base_dir=base_dir):
            raise InvalidJob(problems)
        return SweepRow(
            name=name, answers=simulate_seeds(job, base_dir=base_dir, settings=settings)
        )
    except InvalidJob as invalid:
        return SweepRow(
            name=name, answers=None, reasons=[str(problem) for problem in invalid.problems]
        )
    except RljobError as error:
        return SweepRow(name=name, answers=None, reasons=[str(error)])


def sweep_text(sweep: Sweep) -> str:
    """Return the sweep as text for the user."""
    return "\n".join(_lines(sweep))


def _lines(sweep: Sweep) -> Iterator[str]:
    width = max(len(row.name) for row in sweep.rows)
    heads = ("devices", "tokens/s a device", "linearity", "   a step", "   idle")
    if sweep.first is not None:
        priced = sweep.first.cost is not None
        runs = "1 run" if sweep.first.seeds == 1 else f"{sweep.first.seeds} runs"
        yield f"{sweep.first.job}: {runs} of {sweep.first.steps} steps in virtual time each"
        yield ""
        yield "  ".join([" " * width, *heads, *(["cost"] if priced else [])])
    for row in sweep.rows:
        if row.answers is None:
            yield f"{row.name:{width}s}  refused: {row.reasons[0]}"
            continue
        answers = row.answers
        cells = [
            f"{answers.devices:,}",
            f"{answers.tokens_per_second.mean:,.4g}",
            f"{100 * (sweep.linearity(row) or 0.0):.1f} %",
            f"{answers.seconds.mean:.4g} s",
            f"{100 * row.idle:.1f} %",
        ]
        columns = [f"{cell:>{max(len(head), 7)}s}" for cell, head in zip(cells, heads, strict=True)]
        if answers.cost is not None:
            columns.append(f"{answers.cost.mean:,.4g}")
        yield "  ".join([f"{row.name:{width}s}", *columns])
