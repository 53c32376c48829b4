"""What is wrong with a job's data, found before anything starts.

Called by `launch`; the contract's own rules cannot know dataset names, files and their keys.
"""

from pathlib import Path

from rljob_api.messages import suggestion
from rljob_api.problems import Problem
from rljob_api.workload import Data
from rljob_runtime.data.gym import GymItems, gym_problems
from rljob_runtime.data.items import read_items
from rljob_runtime.data.jsonl import read_jsonl
from rljob_runtime.data.question import Question
from rljob_runtime.data.template import placeholders
from rljob_runtime.errors import ConfigError


def data_problems(data: Data, *, base_dir: Path) -> list[Problem]:
    """All faults of the data section; base_dir: folder of the job's file."""
    if data.reasoning_gym is not None:
        source = data.reasoning_gym
        problems = gym_problems(source.dataset, source.params)
        questions = [] if problems else [GymItems(source.dataset, source.params, seed=0)[0]]
    elif data.jsonl is not None:
        file = read_jsonl(data.jsonl, base_dir=base_dir)
        problems, questions = file.problems, file.questions
    elif data.source is not None:
        try:
            problems, questions = [], read_items(data.source, base_dir=base_dir)
        except ConfigError as error:
            return [Problem("spec.data.source", str(error))]
    else:
        return []  # the rules of the contract say so
    return problems + _template_problems(data.template, questions)


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
