"""What lower precision saves and what it costs: bytes, seconds, log-probs, and what short runs learn.

Full precision, bfloat16 training, an int8 rollout, float8 moments, and all of them. Engines of a random model
take turns, each side in a process of its own: bytes by the memory ledger at their peak, seconds of an
optimizer step, tokens a second. How far both engines' log-probs are apart is taken with the weights that full
precision has trained, the same for all. Runs are the quickstart's, shorter, with the same seeds.
`--json FILE` writes what `write_docs.py` shows.
"""

import argparse
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engines.precision_docs import precision_parts
from benchmarks.engines.precision_runs import RUNS, learn, run_name
from benchmarks.engines.precision_sides import (
    APART,
    FULL,
    GENERATE,
    HELD,
    KEPT,
    PRECISIONS,
    STEP,
    make_side,
)
from benchmarks.support.models import SIZES, make_model
from benchmarks.support.results import describe_machine
from benchmarks.support.runs import QUARTERS
from benchmarks.support.turns import take_turns
from rljob_runtime.models.export import find_model


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
        default="24.7M",
        help="of the engines' model; processors without products in bfloat16 take minutes a step of it",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=80, help="of each run")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    steps = QUARTERS if options.quick else options.steps
    with tempfile.TemporaryDirectory() as place:
        folder, runs = Path(place), dict[str, list[dict[str, Any]]]()
        for seed in options.seeds[:1] if options.quick else options.seeds:
            for name in shown(options.quick) if options.quick else RUNS:
                row = learn(name, folder, steps=steps, seed=seed, quick=options.quick)
                runs.setdefault(name, []).append(row)
                print(
                    f"seed {seed}, {name}: {row['before']:.1%} → {row['after']:.1%}, "
                    f"expected {row['expected']:.1%}, mismatch KL {row['kl']:.2g}",
                    flush=True,
                )
        trained = find_model(folder / run_name(FULL, options.seeds[0]))
        size = "0.8M" if options.quick else options.size
        engines = compare(trained, folder, size=size, quick=options.quick, threads=options.threads)
    document = engines | {"runs": runs, "machine": describe_machine(["rljob", "torch", "ray"])}
    print("\n\n".join(precision_parts(document)))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
