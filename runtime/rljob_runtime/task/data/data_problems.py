"""Find problems of a job's data before anything starts.

Called by `launch`. The spec's own rules cannot know dataset names, files and their keys.
"""

from dataclasses import replace
from pathlib import Path

from rljob_api.spec.messages import suggestion
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.workload import Data
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.data.drawn import DrawnItems
from rljob_runtime.task.data.games import game_problems
from rljob_runtime.task.data.gym import gym_problems
from rljob_runtime.task.data.items import read_items
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.data.source import read_file
from rljob_runtime.task.data.template import placeholders
from rljob_runtime.task.pictures.processor import PLACEHOLDER, placeholder_fault

Checked = tuple[list[Problem], list[Question]]
"""All problems of a data section, and the questions of its good rows; of a generator only the first
question."""


def data_problems(data: Data, *, base_dir: Path, tower: bool = False) -> list[Problem]:
    """Return all problems of the data section that `checked_data` finds."""
    return checked_data(data, base_dir=base_dir, tower=tower)[0]


def checked_data(data: Data, *, base_dir: Path, tower: bool = False) -> Checked:
    """Check a data section. base_dir: folder of the job's file; tower: whether the model sees
    pictures."""
    if data.reasoning_gym is not None:
        problems, questions = gym_problems(data.reasoning_gym)
    elif data.file is not None:
        file = read_file(data, base_dir=base_dir, tower=tower)
        problems, questions = file.problems, file.questions
    elif data.environment is not None:
        problems, questions = game_problems(data.environment), []
    elif data.source is not None:
        try:
            questions = read_items(data.source, data, base_dir=base_dir, tower=tower)
            problems = []
        except ConfigError as error:
            return [Problem("spec.data.source", str(error))], []
    elif data.drawn is not None:
        problems, questions = [], [DrawnItems(data.drawn, seed=0)[0]]
        num_pictures = data.template.count(PLACEHOLDER) + data.template.count("{question}")
        if num_pictures != 1:
            problems = [Problem("spec.data.template", placeholder_fault(num_pictures, 1))]
    else:
        return [], []  # the spec's rules report this
    return [*problems, *_template_problems(data.template, questions)], questions


def checked_suites(spec: RLJobSpec, *, base_dir: Path, tower: bool = False) -> Checked:
    """Check the evaluation's suites, each at all of its levels."""
    problems: dict[Problem, None] = {}
    questions: list[Question] = []
    for index, suite in enumerate(spec.evaluation.suites if spec.evaluation else []):
        path = f"spec.evaluation.suites[{index}]"
        for level in suite.parts():
            data = suite.data(spec.data, level)
            faults, suite_questions = checked_data(data, base_dir=base_dir, tower=tower)
            questions += suite_questions
            for problem in faults:
                of_template = problem.path == "spec.data.template"
                if of_template:
                    located = replace(problem, message=f"{problem.message} (in {path})")
                else:
                    located = replace(problem, path=problem.path.replace("spec.data", path))
                problems[located] = None
    return list(problems), questions


def _template_problems(template: str, questions: list[Question]) -> list[Problem]:
    path = "spec.data.template"
    names = placeholders(template)
    if not names:
        return [Problem(path, f"is {template!r}, the same for every prompt; add {{question}}")]
    if not questions:
        return []
    known = set(questions[0].fields).intersection(*(question.fields for question in questions))
    return [
        Problem(
            path,
            f"names {{{name}}}, which not every item has{suggestion(name, known) or ';'} "
            f"items have {', '.join(sorted(known))}; write {{{{ and }}}} for braces",
        )
        for name in names
        if name not in known
    ]
