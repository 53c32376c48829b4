"""The command `rljob validate`."""

from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.spec.problems import InvalidJob, Problem
from rljob_runtime.cli.output import (
    JobFile,
    exit_if_any,
    exit_with_problems,
    print_note,
    print_text,
)
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
        reported_paths = {problem.path for problem in invalid.problems}
        partial_job = invalid.job
        for local_problem in (
            _local_notes(partial_job, file.parent) if isinstance(partial_job, RLJob) else ()
        ):
            if local_problem.path not in reported_paths:
                print_note(f"on this machine: {local_problem}")
        exit_with_problems(invalid.problems)
    local_problems = _local_notes(job, file.parent)
    problems: list[Problem] = []
    try:
        problems = model_problems(job, base_dir=file.parent)
    except InvalidJob as unreadable:  # the model may be on another machine
        local_problems += unreadable.problems
    note_functions = (device_notes, deadline_notes, evaluation_notes)
    for text in [
        *(text for notes_of in note_functions for text in notes_of(job.spec)),
        *refusals(job),
    ]:
        print_note(str(text))
    for local_problem in local_problems:
        print_note(f"on this machine: {local_problem}")
    exit_if_any(problems)
    print_text(f"{file}: {job.metadata.name} is valid")


def _local_notes(job: "RLJob", folder: Path) -> list[Problem]:
    from rljob_runtime.cli.bring_up.judgement import untested
    from rljob_runtime.cli.local_problems import local_problems

    try:
        problems = untested(job, folder)
    except ConfigError as unreadable:
        problems = [Problem("spec.accelerator.type", str(unreadable))]
    return [*problems, *local_problems(job, folder, alone=False)]
