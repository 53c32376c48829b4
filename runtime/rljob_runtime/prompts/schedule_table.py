"""The table of schedules: the one that a job asks for, by what its spec has."""

from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.candidates import Candidates
from rljob_runtime.prompts.difficulty import Difficulty
from rljob_runtime.prompts.pools import Pools
from rljob_runtime.prompts.schedule import Schedule

SCHEDULES = (Candidates, Pools, Difficulty)
"""`of` says whether a job has it; candidates of a partial rollout have its pools."""


def schedule_of(spec: ResolvedSpec) -> Schedule:
    """That of a run."""
    return next((found for kind in SCHEDULES if (found := kind.of(spec))), Schedule())
