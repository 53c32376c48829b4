"""A cache of the reference's log-probs, shared by later epochs, attempts and runs.

Used by jobs with preference pairs, whose responses are the same in every epoch. `launch` calls
`logprob_cache_folder`; the first device of each replica has a `LogprobCache`. A file is published by one
rename and named by the SHA-256 of its content: a torn or changed file is not read, and its rows are computed
again.
"""

import hashlib
import io
import json
import logging
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.dock.columns import Array, Ragged

log = logging.getLogger(__name__)
THREADS = 4
NAME_BYTES = 16
DECIDES: dict[str, bool | set[str]] = {
    "seed": True,
    "data": True,
    "batch": True,
    "evaluation": {"prompts"},
    "rollout": {"temperature"},
    "update": True,
    "accelerator": True,
}
"""Fields of the spec that determine the numbers to the last bit, including how many rows are computed
together."""
CHANGE_NO_BIT = {"update": {"optimizer", "recompute", "offload", "redundancy"}}


def logprob_cache_folder(
    job: ResolvedJob, *, model: Path, base_dir: Path, cache_dir: Path
) -> Path | None:
    """Return the cache folder for this model, data file and spec.

    None if responses are generated, because they differ in every run.
    """
    pairs = job.spec.data.preferences
    if pairs is None:
        return None
    files = [file for file in (*sorted(model.iterdir()), base_dir / pairs.path) if file.is_file()]
    with ThreadPoolExecutor(THREADS) as threads:
        sums = [*threads.map(_sum, files)]
    decided = {
        "spec": job.spec.model_dump(mode="json", include=DECIDES, exclude=CHANGE_NO_BIT),
        "files": [[file.name, digest] for file, digest in zip(files, sums, strict=True)],
        "versions": [version(name) for name in ("rljob", "torch")],
    }
    text = json.dumps(decided, sort_keys=True).encode()
    return cache_dir.absolute() / "reference" / hashlib.sha256(text).hexdigest()[:32]


def row_key(prompt: Array, response: Array) -> bytes:
    """Hash the tokens of a row."""
    tokens = [len(prompt).to_bytes(8, "big"), prompt.tobytes(), response.tobytes()]
    return hashlib.blake2b(b"".join(tokens), digest_size=NAME_BYTES).digest()


@dataclass(slots=True, kw_only=True)
class LogprobCache:
    """A process's view of the cache folder: rows by `row_key`, in host memory."""

    folder: Path
    _cached: dict[bytes, Array] = field(default_factory=dict, init=False)
    _fresh: dict[bytes, Array] = field(default_factory=dict, init=False)
    _read_files: set[str] = field(default_factory=set, init=False)

    def load_new_files(self) -> None:
        """Load the files that other processes have written since the last call."""
        for file in sorted(self.folder.glob("*.rows")):
            if file.name in self._read_files:
                continue
            self._read_files.add(file.name)
            try:
                content = file.read_bytes()
            except OSError as error:
                log.warning("%s cannot be read, its rows are computed again: %s", file, error)
                continue
            if hashlib.sha256(content).hexdigest() != file.stem:
                log.warning("%s is damaged, its rows are computed again", file)
                continue
            self._cached = _rows(content) | self._cached

    def find(self, names: Sequence[bytes]) -> list[Array] | None:
        """Return the log-probs of these rows, or None if one of them is missing."""
        if not all(name in self._cached for name in names):
            return None
        return [self._cached[name] for name in names]

    def add(self, names: Sequence[bytes], computed: Ragged) -> list[Array]:
        """Add computed rows and return the log-probs of all of them; cached values take precedence."""
        self._fresh |= dict(zip(names, computed.rows(), strict=True))
        self._cached = self._fresh | self._cached
        return [self._cached[name] for name in names]

    def write_new_rows(self) -> None:
        """Write the rows added since the last call. If that fails, only this process has them."""
        fresh, self._fresh = self._fresh, {}
        if not fresh:
            return
        content = _content(fresh)
        file = self.folder / f"{hashlib.sha256(content).hexdigest()}.rows"
        draft = self.folder / f"{uuid.uuid4().hex}.draft"
        self._read_files.add(file.name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(content)
            draft.replace(file)
        except OSError as error:
            log.warning("log-probs of the reference are not kept: %s", error)


def _content(rows: dict[bytes, Array]) -> bytes:
    column, buffer = Ragged.from_rows([*rows.values()]), io.BytesIO()
    names = np.frombuffer(b"".join(rows), dtype=np.uint8)
    for array in (names, column.lengths, column.values):
        np.save(buffer, array)
    return buffer.getvalue()


def _rows(content: bytes) -> dict[bytes, Array]:
    buffer = io.BytesIO(content)
    names, lengths, values = (np.load(buffer) for _ in range(3))
    rows = Ragged(values=values, lengths=lengths).rows()
    return {
        name.tobytes(): row for name, row in zip(names.reshape(-1, NAME_BYTES), rows, strict=True)
    }


def _sum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
