"""The faults of a job: the path of a key and a message with its remedy.

Filled by `load`, `rules`, `layout_rules` and `run_rules`; shown by the CLI and by the operator.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One fault of a job. path: the key as a user reads it, e.g. `spec.rewards[0].pattern`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class InvalidJob(Exception):
    """Report a job that cannot be run or planned; `problems` holds every fault that was found. job: the
    RLJob, if each field could be read and only rules between fields refuse it; None otherwise."""

    def __init__(self, problems: Iterable[Problem], job: object = None) -> None:
        self.problems, self.job = list(dict.fromkeys(problems)), job
        super().__init__("\n".join(str(problem) for problem in self.problems))
