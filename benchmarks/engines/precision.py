"""What lower precision saves and what it costs: bytes, seconds, log-probs, and what short runs learn.

Full precision, bfloat16 training, an int8 rollout, float8 moments, and all of them. Runs are the
quickstart's, shorter, with the same seeds: of `tiny`, and of a wider model that is warmed up here likewise.
Then engines of a random model take turns, each side in a process of its own: bytes by the memory ledger at
their peak, seconds of an optimizer step, tokens a second. How far both engines' log-probs are apart is taken
with the weights of the warm-up, the same for all. `--json FILE` writes what `write_docs.py` shows, after
every run; runs that the file has are not made again.
"""

import argparse
import itertools
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engines.precision_docs import precision_parts
from benchmarks.engines.precision_runs import RUNS, TINY, learn, warmed_up
from benchmarks.engines.precision_sides import (
    APART,
    GENERATE,
    HELD,
    KEPT,
    PRECISIONS,
    STEP,
    make_side,
)
from benchmarks.support.beside import runs_beside
from benchmarks.support.models import SIZES, make_model
from benchmarks.support.runs import QUARTERS
from benchmarks.support.turns import take_turns

WIDE = "24.7M"


def compare(trained: Path, folder: Path, *, size: str, quick: bool, threads: int) -> dict[str, Any]:
    """Bytes, seconds, tokens a second and distances of each precision; lists are of the turns."""
    path = make_model(folder / "random", SIZES[size])
    sides = {
        name: partial(make_side, path, trained, PRECISIONS[name], size, quick)
        for name in shown(quick)
    }
    works = [STEP, GENERATE, *map(str, HELD), KEPT, *APART]
    found: dict[str, Any] = {name: {STEP: [], GENERATE: []} for name in sides}
    for turn in take_turns(sides, works, threads=threads, repetitions=1 if quick else 5):
        if turn.work == STEP:
            found[turn.side][STEP].append(turn.seconds)
        elif turn.work == GENERATE:
            found[turn.side][GENERATE].append(turn.answer / turn.seconds)
        else:
            found[turn.side][turn.work] = turn.answer
    return {"size": size, "sides": found}


def shown(quick: bool) -> list[str]:
    """The precisions that are compared; in a hurry, the first and the last."""
    names = [*PRECISIONS]
    return [names[0], names[-1]] if quick else names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="two precisions: runs of 4 steps, the smallest model"
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument(
        "--size",
        choices=[*SIZES],
        default=WIDE,
        help="of the wider model; processors without products in bfloat16 take minutes a step of it",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=80, help="of each run of `tiny`")
    parser.add_argument("--wide-steps", type=int, default=24, help="of each run of the wider model")
    parser.add_argument("--models", type=Path, help="keep the warmed-up model in this folder")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    size, seeds = options.size, options.seeds
    lengths = {TINY: options.steps, size: options.wide_steps}
    if options.quick:
        size, seeds, lengths = TINY, seeds[:1], {TINY: QUARTERS}
    wanted = [
        {"size": of, "precision": name, "seed": seed, "steps": steps}
        for (of, steps), seed in itertools.product(lengths.items(), seeds)
        for name in (shown(True) if options.quick else RUNS)
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models = options.models or folder
        one = partial(learn, models=models, quick=options.quick)
        document = runs_beside(wanted, one, file=options.json, at_once=1)
        trained = warmed_up(size, models, quick=options.quick)
        document |= compare(
            trained, folder, size=size, quick=options.quick, threads=options.threads
        )
    print("\n\n".join(precision_parts(document)))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
