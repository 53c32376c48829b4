"""Many jobs simulated in turn, a row each: one job with other fields, or several jobs. Called by the CLI.

What is refused is a row, too, with the reason.
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
from rljob_runtime.simulate.several import Asked, answered

MOST_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job. answers: None where it is refused, for these reasons."""

    name: str
    answers: Answers | None
    reasons: Sequence[str] = ()

    @property
    def idle(self) -> float:
        """Share of all devices' time in which they do not work."""
        return sum(self.answers.idle.values()) if self.answers else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Rows in the order in which they were asked for."""

    rows: Sequence[Row]

    @property
    def first(self) -> Answers | None:
        """Which others are compared with: the first that is not refused."""
        return next((row.answers for row in self.rows if row.answers), None)

    def linearity(self, row: Row) -> float | None:
        """Tokens/s a device beside those of the first: 1 where n times the devices are n times as fast. None
        where it is refused."""
        if row.answers is None or self.first is None:
            return None
        return row.answers.tokens_per_second.mean / self.first.tokens_per_second.mean

    def json(self) -> dict[str, Any]:
        """For a file."""
        return {"rows": [self._row(row) for row in self.rows]}

    def _row(self, row: Row) -> dict[str, Any]:
        if row.answers is None:
            return {"name": row.name, "refused": list(row.reasons)}
        return {
            "name": row.name,
            "linearity": self.linearity(row),
            "idle": row.idle,
            "answers": row.answers.json(),
        }


def sweep_job(job: RLJob, texts: Iterable[str], *, base_dir: Path, asked: Asked) -> Sweep:
    """The job with each combination of the values in `texts`, `KEY=a,b` each, see `changes_of`. Raises
    InvalidJob for a text that cannot be read, or more than MOST_ROWS combinations."""
    axes = [changes_of(text) for text in texts]
    combined = list(itertools.product(*axes))
    if len(combined) > MOST_ROWS:
        message = f"asks for {len(combined)} combinations; ask for {MOST_ROWS} at most"
        raise InvalidJob([Problem("--sweep", message)])
    manifest = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    fixed = {key for axis in axes if len(axis) == 1 for key in axis[0]}
    rows = []
    for parts in combined:
        change = {key: value for part in parts for key, value in part.items()}
        varied = change if len(combined) == 1 else [key for key in change if key not in fixed]
        name = " ".join(f"{key}={_shown(change[key])}" for key in varied)
        rows.append(_row(name, _changed(manifest, change), base_dir, asked))
    return Sweep(rows=rows)


def compare_jobs(files: Iterable[Path], *, asked: Asked) -> Sweep:
    """The jobs of these files. Raises InvalidJob for one that cannot be read."""
    jobs = [(file, load_job(file)) for file in files]
    return Sweep(rows=[_row(str(file), job, file.parent, asked) for file, job in jobs])


def changes_of(text: str) -> list[dict[str, Any]]:
    """Of `KEY=a,b`: what each value changes, by path in the spec. `K1+K2=a+b,c+d` changes several keys at a
    time. Values are YAML; null takes a key away. Raises InvalidJob."""
    left, equals, right = text.partition("=")
    keys = [key.strip().removeprefix("spec.") for key in left.split("+")]
    parts = [part.split("+") if len(keys) > 1 else [part] for part in right.split(",")]
    if not equals or not all(keys) or not all(all(part) for part in parts):
        _refuse(text, "names no key with values; write accelerator.nodes=2,4,8 or the like")
    if any(len(part) != len(keys) for part in parts):
        _refuse(text, f"has {len(keys)} keys; write as many values each time: {left}=1+2,3+4")
    return [
        {
            key: parse_yaml(value, name=f"--sweep {key}")
            for key, value in zip(keys, part, strict=True)
        }
        for part in parts
    ]


def _refuse(text: str, message: str) -> NoReturn:
    raise InvalidJob([Problem("--sweep", f"{text!r} {message}")])


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _changed(manifest: Mapping[str, Any], change: Mapping[str, Any]) -> RLJob | InvalidJob:
    """The job with values at paths of its spec, or why there is none."""
    for path, value in change.items():
        part = value
        for key in reversed(f"spec.{path}".split(".")):
            part = {key: part}
        manifest = merge_change(manifest, part)
    try:
        return read_job(manifest)
    except InvalidJob as invalid:
        return invalid


def _row(name: str, job: RLJob | InvalidJob, base_dir: Path, asked: Asked) -> Row:
    try:
        if isinstance(job, InvalidJob):
            raise job
        if problems := model_problems(job, base_dir=base_dir):
            raise InvalidJob(problems)
        return Row(name=name, answers=answered(job, base_dir=base_dir, asked=asked))
    except InvalidJob as invalid:
        return Row(name=name, answers=None, reasons=[str(problem) for problem in invalid.problems])
    except RljobError as error:
        return Row(name=name, answers=None, reasons=[str(error)])


def sweep_text(found: Sweep) -> str:
    """What a user reads."""
    return "\n".join(_lines(found))


def _lines(found: Sweep) -> Iterator[str]:
    width = max(len(row.name) for row in found.rows)
    heads = ("devices", "tokens/s a device", "linearity", "   a step", "   idle")
    if found.first is not None:
        priced = found.first.cost is not None
        runs = "1 run" if found.first.seeds == 1 else f"{found.first.seeds} runs"
        yield f"{found.first.job}: {runs} of {found.first.steps} steps in virtual time each"
        yield ""
        yield "  ".join([" " * width, *heads, *(["cost"] if priced else [])])
    for row in found.rows:
        if row.answers is None:
            yield f"{row.name:{width}s}  refused: {row.reasons[0]}"
            continue
        told = row.answers
        cells = [
            f"{told.devices:,}",
            f"{told.tokens_per_second.mean:,.4g}",
            f"{100 * (found.linearity(row) or 0.0):.1f} %",
            f"{told.seconds.mean:.4g} s",
            f"{100 * row.idle:.1f} %",
        ]
        padded = [f"{cell:>{max(len(head), 7)}s}" for cell, head in zip(cells, heads, strict=True)]
        if told.cost is not None:
            padded.append(f"{told.cost.mean:,.4g}")
        yield "  ".join([f"{row.name:{width}s}", *padded])
