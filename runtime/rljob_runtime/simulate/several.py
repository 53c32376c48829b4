"""Simulated runs of a job, each with a seed of its own, and what they say together. Called by the CLI and by
`sweep`."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rljob_api.spec.rljob import RLJob
from rljob_runtime.simulate.answers import Answers, Gathered, answers
from rljob_runtime.simulate.costs import planned
from rljob_runtime.simulate.draws import Lengths, lengths_of
from rljob_runtime.simulate.fit import Measured
from rljob_runtime.simulate.run import simulate, with_steps

MOST_STEPS = 10
"""Of a run, unless more are asked for."""
MEAN_SHARE, SIGMA = 0.4, 0.6
"""Of lengths that nobody has said: the mean as a share of the longest, and how long their tail is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How jobs are simulated. seeds: runs of each. steps: of a run; None: the job's, MOST_STEPS at most.
    lengths: as `lengths_of` reads them. price: of a device-hour. rates: see `rates_of`. measured: what a run
    has shown, in place of arithmetic."""

    seeds: int = 3
    steps: int | None = None
    lengths: str | None = None
    price: float | None = None
    rates: Sequence[str] = ()
    measured: Measured | None = None

    def drawn(self, longest: int) -> Lengths:
        """Of responses of at most so many tokens. Raises InvalidJob."""
        if self.lengths is None and self.measured is not None:
            return self.measured.lengths
        return lengths_of(
            self.lengths or f"lognormal:{MEAN_SHARE * longest},{SIGMA}", longest=longest
        )


def answered(job: RLJob, *, base_dir: Path, asked: Asked, output: Path | None = None) -> Answers:
    """output: where the first run's events go. Raises InvalidJob for what cannot be simulated, RljobError as
    a run ends with it."""
    resolved, costs, peak = planned(job, base_dir=base_dir, rates=asked.rates)
    if asked.measured is not None:
        costs = asked.measured.costs(costs)
    drawn = asked.drawn(resolved.spec.batch.max_response_length)
    total = resolved.spec.steps
    cut = with_steps(resolved, min(total, asked.steps or MOST_STEPS))
    runs = []
    with ExitStack() as open_folders:
        for seed in range(1, asked.seeds + 1):
            folder = output if seed == 1 else None
            folder = folder or Path(open_folders.enter_context(tempfile.TemporaryDirectory()))
            run = Gathered()
            simulate(
                cut,
                costs=costs,
                lengths=drawn,
                seed=seed,
                folder=folder,
                peak_bytes=peak,
                subscriber=run.on_event,
            )
            runs.append(run)
    return answers(job.metadata.name, runs, total_steps=total, price=asked.price)
