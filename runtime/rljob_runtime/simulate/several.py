"""Simulated runs of a job with different seeds, and their combined results. The CLI and `sweep` call this."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rljob_api.spec.rljob import RLJob
from rljob_runtime.simulate.answers import Answers, RunSummary, answers_of
from rljob_runtime.simulate.costs import planned
from rljob_runtime.simulate.draws import Lengths, lengths_of
from rljob_runtime.simulate.fit import Measured
from rljob_runtime.simulate.run import simulate, with_steps

MOST_STEPS = 10
"""Maximum steps of a run, unless the user requests more."""
MEAN_SHARE, SIGMA = 0.4, 0.6
"""Default lengths: the mean as a share of the maximum, and sigma of the log-normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """How jobs are simulated.

    seeds: runs of each. steps: of a run; None: the job's, at most MOST_STEPS. lengths: in the format of
    `lengths_of`. price: of a device-hour. rates: see `rates_of`. measured: rates of a run, which replace the
    arithmetic's.
    """

    seeds: int = 3
    steps: int | None = None
    lengths: str | None = None
    price: float | None = None
    rates: Sequence[str] = ()
    measured: Measured | None = None

    def response_lengths(self, longest: int) -> Lengths:
        """Return the distribution of responses' lengths, at most `longest` tokens. Raises InvalidJob."""
        if self.lengths is None and self.measured is not None:
            return self.measured.lengths
        return lengths_of(
            self.lengths or f"lognormal:{MEAN_SHARE * longest},{SIGMA}", longest=longest
        )


def simulate_seeds(
    job: RLJob, *, base_dir: Path, settings: SimulationSettings, output: Path | None = None
) -> Answers:
    """Simulate the job once per seed. output: folder of the first run's events.

    Raises InvalidJob for a job that cannot be simulated, RljobError if a run ends with it.
    """
    resolved, costs, peak = planned(job, base_dir=base_dir, rates=settings.rates)
    if settings.measured is not None:
        costs = settings.measured.costs(costs)
    response_lengths = settings.response_lengths(resolved.spec.batch.max_response_length)
    total = resolved.spec.steps
    cut = with_steps(resolved, min(total, settings.steps or MOST_STEPS))
    runs = []
    with ExitStack() as open_folders:
        for seed in range(1, settings.seeds + 1):
            folder = output if seed == 1 else None
            folder = folder or Path(open_folders.enter_context(tempfile.TemporaryDirectory()))
            run = RunSummary()
            simulate(
                cut,
                costs=costs,
                lengths=response_lengths,
                seed=seed,
                folder=folder,
                peak_bytes=peak,
                subscriber=run.on_event,
            )
            runs.append(run)
    return answers_of(job.metadata.name, runs, total_steps=total, price=settings.price)
