"""Choose the schedule of a job by the settings in its spec."""

from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.candidates import Candidates
from rljob_runtime.prompts.difficulty import Difficulty
from rljob_runtime.prompts.pools import Pools
from rljob_runtime.prompts.schedule import PromptSchedule

SCHEDULES = (Candidates, Pools, Difficulty)
"""Kinds of schedules. `of` returns None for jobs of another kind. Candidates come first: with a
partial rollout they contain its pools."""


def schedule_of(spec: ResolvedSpec) -> PromptSchedule:
    """Return the schedule of a run."""
    return next((schedule for kind in SCHEDULES if (schedule := kind.of(spec))), PromptSchedule())
