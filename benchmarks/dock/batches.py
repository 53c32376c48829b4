"""A step's rows from the dock to micro-batches: tensors over what was read, beside rows made lists and back.

One client, in turns on the same rows: prompts of 256 tokens, responses of up to 1,024 and four more columns
of them. Both sides must give the same bits.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from benchmarks.dock.sample_flow.payload import LEAST_LENGTH, SIGMA
from benchmarks.support.results import Result, report, summarize
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.graph import State
from rljob_runtime.dock.local_servers import LocalDock
from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.worker.micro_batches import MicroBatches
from rljob_runtime.worker.samples import read_samples

GROUPS, SAMPLES = 128, 8
PROMPT_TOKENS, RESPONSE_TOKENS = 256, 1024
FIELDS = ("rollout_logprobs", "reference_logprobs", "teacher_logprobs", "values")
WRITTEN = ("response", *FIELDS, "advantage")
STATES = [
    State(name="generate", needs=("prompt",), writes=WRITTEN),
    State(name="update", needs=("prompt", *WRITTEN)),
]
LISTS, ALONE = "through lists", "the read alone"
TIMEOUT_SECONDS = 60.0


def as_tensors(dock: DockClient, rows: Sequence[RowMeta]) -> SampleBatch:
    """As the update reads them."""
    return read_samples(dock, rows, fields=FIELDS, scalars=["advantage"])


def as_lists(dock: DockClient, rows: Sequence[RowMeta]) -> SampleBatch:
    """Row by row: tokens as lists of Python's integers, and a copy of each row's values."""
    columns = dock.read(rows, ["prompt", *WRITTEN])

    def tokens(name: str, i: int) -> torch.Tensor:
        return torch.tensor(columns[name].row(i).tolist(), dtype=torch.int64)

    every = range(len(rows))
    firsts = {row.group_index: i for i, row in reversed([*enumerate(rows)])}
    return SampleBatch(
        prompts=[tokens("prompt", firsts[group]) for group in range(GROUPS)],
        group_of_B=torch.tensor([row.group_index for row in rows]),
        responses=[tokens("response", i) for i in every],
        fields={n: [torch.from_numpy(columns[n].row(i).copy()) for i in every] for n in FIELDS},
        scalars={"advantage": torch.tensor([float(columns["advantage"].row(i)[0]) for i in every])},
    )


def micro_batches(samples: SampleBatch) -> list[SampleBatch]:
    """Cut into micro-batches of 8 groups, as the update does."""
    cut = MicroBatches(size=8, all_teach=True)
    full = [made for group in samples.by_group() for made in cut.add(group)]
    return [made.samples for made in (*full, *cut.remaining())]


def fill(dock: LocalDock, *, ragged: bool) -> tuple[DockClient, list[RowMeta]]:
    """A batch that is ready for the update, and who has claimed it."""
    draw, name, count = np.random.default_rng(0), f"ragged={ragged}", GROUPS * SAMPLES
    prompts = draw.integers(0, 150_000, (GROUPS, PROMPT_TOKENS), dtype=np.int32)
    rows = [
        NewRow(
            uid=f"{name}/{g}/{s}",
            group=f"{name}/{g}",
            group_index=g,
            group_columns={"prompt": prompts[g]},
        )
        for g in range(GROUPS)
        for s in range(SAMPLES)
    ]
    dock.client("feed", "feeder").put_rows(name, rows, total=count)
    lengths = np.full(count, RESPONSE_TOKENS)
    if ragged:
        drawn = draw.lognormal(np.log(0.45 * RESPONSE_TOKENS), SIGMA, count)
        lengths = drawn.clip(LEAST_LENGTH, RESPONSE_TOKENS).astype(np.int64)
    size = int(lengths.sum())
    columns: dict[str, np.ndarray] = {
        n: draw.standard_normal(size, dtype=np.float32) for n in FIELDS
    }
    columns["response"] = draw.integers(0, 150_000, size, dtype=np.int32)
    written = {n: Ragged(values=values, lengths=lengths) for n, values in columns.items()}
    advantages = draw.standard_normal(count, dtype=np.float32)
    written["advantage"] = Ragged(values=advantages, lengths=np.ones(count, dtype=np.int64))
    generate, update = (dock.client(state.name, state.name) for state in STATES)
    claimed = generate.claim(name, share=(0, 1), timeout_seconds=TIMEOUT_SECONDS).rows
    generate.write(claimed, written)
    claim = update.claim(name, share=(0, 1), timeout_seconds=TIMEOUT_SECONDS)
    return update, list(claim.rows)


def compare(warehouses: int, *, ragged: bool, repetitions: int) -> list[Result]:
    """Milliseconds of the client's processor time: others on the machine change it little."""
    read: dict[str, list[float]] = {"rljob": [], LISTS: [], ALONE: []}
    both: dict[str, list[float]] = {"rljob": [], LISTS: []}
    with LocalDock(STATES, warehouses=warehouses) as dock:
        client, rows = fill(dock, ragged=ragged)
        check_same(as_tensors(client, rows), as_lists(client, rows))
        for _ in range(repetitions):
            started = time.process_time()
            client.read(rows, ["prompt", *WRITTEN])
            read[ALONE].append(1e3 * (time.process_time() - started))
            for side, way in (("rljob", as_tensors), (LISTS, as_lists)):
                started = time.process_time()
                samples = way(client, rows)
                read[side].append(1e3 * (time.process_time() - started))
                cut = micro_batches(samples)
                both[side].append(1e3 * (time.process_time() - started))
                del samples, cut  # freed here, not within the next one's time
    what = f"{GROUPS * SAMPLES:,} {'ragged ' * ragged}rows of {warehouses} warehouse{'s' * (warehouses > 1)}"
    return [
        summarize(
            f"{what}: {name}",
            ours=taken.pop("rljob"),
            peers=taken,
            unit="ms",
            better="lower",
            targets={LISTS: wanted},
        )
        for name, taken, wanted in (("read", read, 4.0), ("read and cut", both, 3.0))
    ]


def check_same(found: SampleBatch, expected: SampleBatch) -> None:
    """Raise AssertionError where a bit differs."""
    ours, theirs = (
        [*x.prompts, x.group_of_B, *x.responses, *chain(*x.fields.values()), *x.scalars.values()]
        for x in (found, expected)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b), "the two ways differ"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one warehouse, five repetitions")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = [
        result
        for warehouses in ([1] if options.quick else [1, 2])
        for ragged in (False, True)
        for result in compare(warehouses, ragged=ragged, repetitions=5 if options.quick else 31)
    ]
    report(results, packages=["rljob", "torch", "numpy"], file=options.json)


if __name__ == "__main__":
    main()
