"""When samples end, against the planner's arithmetic and a pass by pass account."""

from pathlib import Path

import numpy as np
import pytest

from rljob_api.check.load import load_job
from rljob_api.model.architecture import find_shape
from rljob_api.topology.resolved import resolve
from rljob_plan.decoding import decode_seconds
from rljob_plan.machines import rates_of
from rljob_runtime.simulate.costs import Decoding, planned
from rljob_runtime.simulate.decoding import ends

PAPER = Path(__file__).parents[2] / "examples" / "paper"


def by_passes(decoding: Decoding, prompts: list[int], responses: list[int]) -> list[float]:
    """One pass after the other, with whoever has room."""
    left, waiting = dict[int, int](), list(range(len(prompts)))
    found, seconds = [0.0] * len(prompts), 0.0
    while left or waiting:
        while waiting and len(left) < decoding.room:
            place = waiting.pop(0)
            left[place] = responses[place]
            seconds += decoding.prompt_seconds * prompts[place]
        seen = sum(prompts[place] + responses[place] - n + 1 for place, n in left.items())
        seconds += decoding.pass_seconds + len(left) * decoding.sequence_seconds
        seconds += max(decoding.weights_seconds, len(left) * decoding.product_seconds)
        seconds += decoding.context_seconds * seen
        left = {place: n - 1 for place, n in left.items()}
        for place in [place for place, n in left.items() if not n]:
            del left[place]
            found[place] = seconds
    return found


@pytest.mark.parametrize("room", [2, 3, 40])
def test_samples_end_as_passes_say(room: int) -> None:
    random = np.random.default_rng(7)
    prompts, responses = random.integers(1, 20, 9), random.integers(1, 30, 9)
    decoding = Decoding(
        prompt_seconds=0.0 if room < 9 else 0.25,
        pass_seconds=1.0,
        weights_seconds=5.0,
        product_seconds=1.5,
        sequence_seconds=0.5,
        context_seconds=0.125,
        room=room,
    )

    found = ends(decoding, prompts, responses, 1)

    assert found == pytest.approx(by_passes(decoding, prompts.tolist(), responses.tolist()))


@pytest.mark.parametrize("name", ["qwen2.5-7b", "deepseek-r1-671b"])
def test_the_longest_responses_take_what_the_planner_says(name: str) -> None:
    job = load_job(PAPER / f"{name}.yaml")
    spec = resolve(job).spec
    shape, rates = find_shape(spec.model, base_dir=PAPER), rates_of(spec.accelerator.type)
    _, costs, _ = planned(job, base_dir=PAPER)
    batch, room = spec.batch, costs.decoding.room
    samples = batch.global_batch_size * batch.samples_per_prompt // spec.rollout.parallelism.data

    found = ends(
        costs.decoding,
        np.full(samples, batch.max_prompt_length),
        np.full(samples, batch.max_response_length),
        samples,
    )

    assert shape is not None
    planned_seconds = decode_seconds(spec, shape, *rates, room=room)
    assert found.max() == pytest.approx(planned_seconds, rel=0.02)
