"""What checksums cost where a checkpoint is read: model and optimizer state with comparison beside it, and
without.

Both sides in turn, in one process, on files that the page cache holds, where reading is fastest and the
comparison counts most. `--cold` drops the files from the cache before each turn.
"""

import argparse
import os
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from benchmarks.support.models import SIZES, make_model
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.weights import load_weights_into
from rljob_runtime.record.checksums import (
    check_files,
    merge_rank_sums,
    verifying_checksums,
    write_rank_sums,
)


def write(folder: Path, size: str) -> int:
    """A checkpoint of a model and of two moments for each of its weights; its bytes."""
    make_model(folder / "model", SIZES[size])
    decoder = load_decoder(folder / "model", dtype=torch.float32)
    moments = {name: [torch.randn_like(p)] * 2 for name, p in decoder.named_parameters()}
    torch.save(
        {n: [m.clone() for m in both] for n, both in moments.items()}, folder / "optimizer.pt"
    )
    files = [file for file in folder.rglob("*") if file.is_file()]
    write_rank_sums(folder, files, rank=0)
    merge_rank_sums(folder, [])
    return sum(file.stat().st_size for file in files)


def drop(folder: Path) -> None:
    """Its files from the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> None:
    """Print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="135M")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        num_bytes = write(folder, "24.7M" if options.quick else options.size)
        model = load_decoder(folder / "model", dtype=torch.float32)
        held = torch.load(folder / "optimizer.pt", weights_only=True)
        seconds: dict[str, list[float]] = {"plain": [], "compared": [], "comparison alone": []}
        for _ in range(options.repetitions):
            for side, taken in seconds.items():
                if options.cold:
                    drop(folder)
                began = time.perf_counter()
                if side == "comparison alone":
                    check_files(folder)
                else:
                    with verifying_checksums(folder) if side == "compared" else nullcontext():
                        load_weights_into(model, folder / "model")
                        for name, both in torch.load(
                            folder / "optimizer.pt", weights_only=True
                        ).items():
                            for mine, stored in zip(held[name], both, strict=True):
                                mine.copy_(stored)
                taken.append(time.perf_counter() - began)
    medians = {side: statistics.median(taken) for side, taken in seconds.items()}
    for side, median in medians.items():
        spread = f"{min(seconds[side]):.3f} to {max(seconds[side]):.3f}"
        print(f"{side}: {median:.3f} s ({spread}), {num_bytes / median / 1e9:.2f} GB/s")
    print(f"compared beside plain: {medians['compared'] / medians['plain']:.3f}")


if __name__ == "__main__":
    main()
