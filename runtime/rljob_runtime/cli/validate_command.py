"""`rljob validate`."""

from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.spec.problems import InvalidJob, Problem
from rljob_runtime.cli.output import JobFile, end_with, note, print_text, refuse
from rljob_runtime.errors import ConfigError

if TYPE_CHECKING:
    from rljob_api.spec.rljob import RLJob


def validate(file: JobFile) -> None:
    """Check a job and print every problem, each with its path; what holds for this machine alone, such as
    data or a package that is not here, is a note."""
    from rljob_api.check.cluster_rules import deadline_notes
    from rljob_api.check.evaluation_rules import evaluation_notes
    from rljob_api.check.load import load_job
    from rljob_api.check.run_rules import refusals
    from rljob_api.spec.rljob import RLJob
    from rljob_api.topology.elastic import device_notes
    from rljob_plan.plan import model_problems

    try:
        job = load_job(file)
    except InvalidJob as invalid:
        told = {problem.path for problem in invalid.problems}
        read = invalid.job
        for found in _notes_of_here(read, file.parent) if isinstance(read, RLJob) else ():
            if found.path not in told:
                note(f"on this machine: {found}")
        end_with(invalid.problems)
    elsewhere = _notes_of_here(job, file.parent)
    problems: list[Problem] = []
    try:
        problems = model_problems(job, base_dir=file.parent)
    except InvalidJob as unreadable:  # the model may lie on another machine
        elsewhere += unreadable.problems
    told_of = (device_notes, deadline_notes, evaluation_notes)
    for text in [*(text for tell in told_of for text in tell(job.spec)), *refusals(job)]:
        note(str(text))
    for found in elsewhere:
        note(f"on this machine: {found}")
    refuse(problems)
    print_text(f"{file}: {job.metadata.name} is valid")


def _notes_of_here(job: "RLJob", folder: Path) -> list[Problem]:
    from rljob_runtime.cli.bring_up.judgement import untested
    from rljob_runtime.cli.local_problems import local_problems

    try:
        found = untested(job, folder)
    except ConfigError as unreadable:
        found = [Problem("spec.accelerator.type", str(unreadable))]
    return [*found, *local_problems(job, folder, alone=False)]
