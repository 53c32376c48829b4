"""What it costs to score the quickstart's responses in a process without rights, a new one for each step.

Batches of a step's size are scored in turns by a pool with the restriction and by one without; a step is that
of a run of the quickstart beside them, without Ray.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks import ROOT
from benchmarks.support.figures import Figures
from benchmarks.support.runs import events_of
from rljob_api.spec.workload import Data, Reward
from rljob_runtime.task.data.gym import GymItems
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.scorer_pool import RewardPool

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
WARM_UP_STEPS = 3
WANTED = 10.0
"""Percent of a step, at most."""


def groups_of(data: Data, *, groups: int, samples: int) -> list[list[RewardRequest]]:
    """A step's responses, of which half are right."""
    assert data.reasoning_gym is not None, "the quickstart has a data set"
    items = GymItems(data.reasoning_gym, seed=0)
    return [
        [
            RewardRequest(
                prompt="",
                response=question.answer if number % 2 else question.answer[::-1],
                answer=question.answer,
                entry=question.entry,
            )
            for number in range(samples)
        ]
        for question in (items[place] for place in range(groups))
    ]


def seconds_of(pool: RewardPool, groups: Sequence[Sequence[RewardRequest]]) -> float:
    """Group by group, as a reward worker does."""
    began = time.perf_counter()
    for requests in groups:
        pool.score(requests)
    pool.end_batch()
    return time.perf_counter() - began


def main() -> None:
    """Score in turns, run the quickstart, print the shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    job = yaml.safe_load(QUICKSTART.read_text())
    spec, data = job["spec"], Data.model_validate(job["spec"]["data"])
    sizes = spec["batch"]
    groups = groups_of(data, groups=sizes["globalBatchSize"], samples=sizes["samplesPerPrompt"])
    own = Reward.model_validate(spec["rewards"][0])
    taken: dict[bool, list[float]] = {True: [], False: []}
    pools = {
        restricted: RewardPool(
            [own.model_copy(update={"restricted": restricted})], data, processes=1, base_dir=ROOT
        )
        for restricted in taken
    }
    for number in range(options.batches + 1):
        for restricted, pool in pools.items():
            seconds = seconds_of(pool, groups)
            if number:
                taken[restricted].append(seconds)
    for pool in pools.values():
        pool.close()
    spec.pop("evaluation")
    spec["steps"] = options.steps
    with tempfile.TemporaryDirectory() as place:
        events = events_of(job, Path(place), "quickstart", "--local")
    steps = [event["seconds"] for event in events if event["kind"] == "step"][WARM_UP_STEPS:]
    step, free, held = map(statistics.median, (steps, taken[False], taken[True]))
    figures = Figures()
    figures.add("a step of the quickstart", step, "s")
    figures.add("scores of its responses, not restricted", 1000 * free, "ms")
    figures.add("scores of its responses, restricted", 1000 * held, "ms")
    figures.add("the restriction, of a step", 100 * (held - free) / step, "%", limit=WANTED)
    if options.json is not None:
        figures.write(
            options.json,
            packages=["rljob", "reasoning-gym"],
            facts={"samples": sum(map(len, groups)), "batches": options.batches},
        )


if __name__ == "__main__":
    main()
