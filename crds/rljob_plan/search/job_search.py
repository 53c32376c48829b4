"""Search a job's layouts, from its file's folder to the result. Called by the CLI."""

from collections.abc import Iterable
from pathlib import Path

from rljob_api.check.shape_rules import shape_problems
from rljob_api.model.architecture import find_shape
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.resolved import resolve
from rljob_plan.machines import rates_of
from rljob_plan.plan import other_shapes
from rljob_plan.search.candidates import Placements
from rljob_plan.search.estimates import Estimator
from rljob_plan.search.ranking import Ranking, rank
from rljob_plan.search.remedies import remedies


def search_job(
    job: RLJob,
    *,
    base_dir: Path,
    top: int,
    placements: Placements = "job",
    rates: Iterable[str] = (),
) -> tuple[Ranking, list[str]]:
    """Return the `top` fastest layouts, and what would help if none fits. job: passed the rules. rates:
    override the table's, see `rates_of`. Raises InvalidJob for a model that cannot be read or has an unknown
    shape, for a shape that forbids the job's own degrees, and for invalid rates."""
    machine = rates_of(job.spec.accelerator.type, rates)
    shape = find_shape(job.spec.model, base_dir=base_dir)
    if shape is None:
        message = (
            f"{job.spec.model.path} is a model of unknown shape, whose memory and time cannot be "
        )
        message += "predicted; leave --search out, or use a family that docs/models.md lists"
        raise InvalidJob([Problem("spec.model.path", message)])
    spec = resolve(job).spec
    others, _ = other_shapes(spec, base_dir=base_dir)
    if problems := shape_problems(spec, shape, others):
        raise InvalidJob(problems)
    estimates = Estimator(job, shape, others, machine)
    ranking = rank(estimates, top=top, placements=placements)
    return ranking, [] if ranking.proposals else remedies(estimates, placements)
