"""Checksums of a checkpoint's files: made by who wrote them, compared by who reads them.

CRC-32, which finds every flipped bit and nearly every torn file, as fast as a disk reads; threads share the
files out. Written into `checksums.json` by `CheckpointStore`; a checkpoint without one is of an older
version, and passes.
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
PIECE_BYTES = 4 << 20
THREADS = 4
MOST_SECONDS = 604_800.0
"""The longest spec.flow.stageTimeoutSeconds, which ends a load that hangs before."""


def leave_sums(folder: Path, files: Collection[Path], *, rank: int) -> None:
    """Write the sums of files that this rank wrote below `folder`, for `gather_sums`."""
    (folder / f"{SUMS_FILE}.{rank}").write_text(json.dumps(_sums(folder, sorted(files))))


def gather_sums(folder: Path, others: Sequence[str]) -> None:
    """Put what ranks left, and the sums of `others`, into one file."""
    sums = _sums(folder, [folder / name for name in others])
    for left in sorted(folder.glob(f"{SUMS_FILE}.*")):
        sums |= json.loads(left.read_text())
        left.unlink()
    (folder / SUMS_FILE).write_text(json.dumps(sums, indent=1, sort_keys=True) + "\n")


@contextlib.contextmanager
def compared(
    checkpoint: Path, *, share: tuple[int, int] = (0, 1), within: str = ""
) -> Iterator[None]:
    """Compare files while the block reads them. share: (rank, of) of them. within: those below this name.

    Raises CheckpointDamaged, also in place of what the block raised about them.
    """
    with ThreadPoolExecutor(1) as thread:
        comparing = thread.submit(check_files, checkpoint, share=share, within=within)
        try:
            yield
        finally:
            comparing.result(timeout=MOST_SECONDS)


def check_files(checkpoint: Path, *, share: tuple[int, int] = (0, 1), within: str = "") -> int:
    """The number of files that were compared; arguments as of `compared`. Raises CheckpointDamaged."""
    try:
        noted = {name: str(value) for name, value in read_json(checkpoint / SUMS_FILE).items()}
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, AttributeError) as error:
        raise _damaged(checkpoint, SUMS_FILE, str(error)) from error
    for name in noted:
        if not is_within(name):
            raise _damaged(checkpoint, SUMS_FILE, f"it names {name!r}, which is no file of it")
    rank, of = share
    names = [name for name in sorted(noted) if name.startswith(within)][rank::of]
    try:
        found = _sums(checkpoint, [checkpoint / name for name in names])
    except OSError as error:
        raise _damaged(checkpoint, str(error.filename), error.strerror or str(error)) from error
    for name in names:
        if found[name] != noted[name]:
            told = f"its checksum is {found[name]}, and was {noted[name]} when it was written"
            raise _damaged(checkpoint, name, told)
    return len(names)


def is_within(name: str) -> bool:
    """Return whether a name that came out of a file is that of a file within its folder."""
    place = PurePosixPath(name)
    return not place.is_absolute() and ".." not in place.parts and "\0" not in name


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
        piece = memoryview(bytearray(PIECE_BYTES))
        while size := content.readinto(piece):
            total = zlib.crc32(piece[:size], total)
    return f"{total:08x}"
