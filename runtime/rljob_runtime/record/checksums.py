"""Checksums of a checkpoint's files: computed when they are written, compared when they are read.

CRC-32 detects every flipped bit and nearly every torn file, at the speed of a disk; threads share the files.
`CheckpointStore` stores them in `checksums.json`. A checkpoint without this file comes from an older version
and is accepted.
"""

import contextlib
import json
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from rljob_api.spec.json_text import read_json
from rljob_runtime.errors import CheckpointDamaged

SUMS_FILE = "checksums.json"
CHUNK_BYTES = 4 << 20
THREADS = 4
MOST_SECONDS = 604_800.0
"""The longest spec.flow.stageTimeoutSeconds, which ends a hanging load earlier."""


def write_rank_sums(folder: Path, files: Collection[Path], *, rank: int) -> None:
    """Write the checksums of this rank's files below `folder`, for `merge_rank_sums`."""
    (folder / f"{SUMS_FILE}.{rank}").write_text(json.dumps(_sums(folder, sorted(files))))


def merge_rank_sums(folder: Path, other_files: Sequence[str]) -> None:
    """Merge the checksums of all ranks, and those of `others`, into one file."""
    sums = _sums(folder, [folder / name for name in other_files])
    for rank_file in sorted(folder.glob(f"{SUMS_FILE}.*")):
        sums |= json.loads(rank_file.read_text())
        rank_file.unlink()
    (folder / SUMS_FILE).write_text(json.dumps(sums, indent=1, sort_keys=True) + "\n")


@contextlib.contextmanager
def verifying_checksums(
    checkpoint: Path, *, share: tuple[int, int] = (0, 1), within: str = ""
) -> Iterator[None]:
    """Compare the checksums of files while the block reads them.

    share: (rank, number of ranks) that share the files. within: prefix of the names to compare. Raises
    CheckpointDamaged, also in place of the error that the block raised because of a damaged file.
    """
    with ThreadPoolExecutor(1) as thread:
        comparing = thread.submit(check_files, checkpoint, share=share, within=within)
        try:
            yield
        finally:
            comparing.result(timeout=MOST_SECONDS)


def check_files(checkpoint: Path, *, share: tuple[int, int] = (0, 1), within: str = "") -> int:
    """Compare the files and return their number. Arguments as in `verifying_checksums`. Raises
    CheckpointDamaged."""
    try:
        expected = {name: str(value) for name, value in read_json(checkpoint / SUMS_FILE).items()}
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, AttributeError) as error:
        raise _damaged(checkpoint, SUMS_FILE, str(error)) from error
    for name in expected:
        if not is_within(name):
            raise _damaged(checkpoint, SUMS_FILE, f"it names {name!r}, which is no file of it")
    rank, of = share
    names = [name for name in sorted(expected) if name.startswith(within)][rank::of]
    try:
        actual = _sums(checkpoint, [checkpoint / name for name in names])
    except OSError as error:
        raise _damaged(checkpoint, str(error.filename), error.strerror or str(error)) from error
    for name in names:
        if actual[name] != expected[name]:
            reason = f"its checksum is {actual[name]}, and was {expected[name]} when it was written"
            raise _damaged(checkpoint, name, reason)
    return len(names)


def is_within(name: str) -> bool:
    """Return whether a name that was read from a file refers to a path within its folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _damaged(checkpoint: Path, name: str, why: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{checkpoint / name} is damaged: {why}; put it back from a copy, or go on from an earlier "
        "checkpoint (--resume)"
    )


def _sums(folder: Path, files: Sequence[Path]) -> dict[str, str]:
    with ThreadPoolExecutor(THREADS) as threads:
        sums = threads.map(_sum, files)
        return {f.relative_to(folder).as_posix(): s for f, s in zip(files, sums, strict=True)}


def _sum(file: Path) -> str:
    total = 0
    with file.open("rb", buffering=0) as content:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while size := content.readinto(buffer):
            total = zlib.crc32(buffer[:size], total)
    return f"{total:08x}"
