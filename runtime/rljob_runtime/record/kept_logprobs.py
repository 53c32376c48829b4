"""Log-probs of the reference that were computed once, for later epochs, attempts and runs to read.

Of jobs with pairs of the data, whose responses are the same in every epoch. `launch` calls `kept_folder`; the
first device of each replica has a `KeptLogprobs`. A file appears by one rename and is named by the SHA-256 of
its content: one that is torn or has changed is not read, and its rows are computed again.
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
"""Fields of the spec that the numbers follow from, to the last bit: also what is computed at once."""
CHANGE_NO_BIT = {"update": {"optimizer", "recompute", "offload", "redundancy"}}


def kept_folder(job: ResolvedJob, *, model: Path, base_dir: Path, cache_dir: Path) -> Path | None:
    """Where log-probs of this model, file and spec are kept; None where responses are drawn anew."""
    pairs = job.spec.data.preferences
    if pairs is None:
        return None
    files = [file for file in (*sorted(model.iterdir()), base_dir / pairs.path) if file.is_file()]
    with ThreadPoolExecutor(THREADS) as threads:
        sums = [*threads.map(_sum, files)]
    decided = {
        "spec": job.spec.model_dump(mode="json", include=DECIDES, exclude=CHANGE_NO_BIT),
        "files": [[file.name, found] for file, found in zip(files, sums, strict=True)],
        "versions": [version(name) for name in ("rljob", "torch")],
    }
    text = json.dumps(decided, sort_keys=True).encode()
    return cache_dir.absolute() / "reference" / hashlib.sha256(text).hexdigest()[:32]


def name_of(prompt: Array, response: Array) -> bytes:
    """Of a row, by its tokens."""
    both = [len(prompt).to_bytes(8, "big"), prompt.tobytes(), response.tobytes()]
    return hashlib.blake2b(b"".join(both), digest_size=NAME_BYTES).digest()


@dataclass(slots=True, kw_only=True)
class KeptLogprobs:
    """A process's view of the folder: rows by `name_of`, in host memory."""

    folder: Path
    _known: dict[bytes, Array] = field(default_factory=dict, init=False)
    _fresh: dict[bytes, Array] = field(default_factory=dict, init=False)
    _looked_at: set[str] = field(default_factory=set, init=False)

    def look(self) -> None:
        """Take in what others have kept since the last time."""
        for file in sorted(self.folder.glob("*.rows")):
            if file.name in self._looked_at:
                continue
            self._looked_at.add(file.name)
            try:
                content = file.read_bytes()
            except OSError as error:
                log.warning("%s cannot be read, its rows are computed again: %s", file, error)
                continue
            if hashlib.sha256(content).hexdigest() != file.stem:
                log.warning("%s is damaged, its rows are computed again", file)
                continue
            self._known = _rows(content) | self._known

    def find(self, names: Sequence[bytes]) -> list[Array] | None:
        """Log-probs of these rows; None where one of them is missing."""
        if not all(name in self._known for name in names):
            return None
        return [self._known[name] for name in names]

    def add(self, names: Sequence[bytes], computed: Ragged) -> list[Array]:
        """Log-probs of these rows: as they are known, else as they were computed just now."""
        self._fresh |= dict(zip(names, computed.rows(), strict=True))
        self._known = self._fresh | self._known
        return [self._known[name] for name in names]

    def keep(self) -> None:
        """Write what was added since the last time. Where that fails, this process alone has it."""
        fresh, self._fresh = self._fresh, {}
        if not fresh:
            return
        content = _content(fresh)
        file = self.folder / f"{hashlib.sha256(content).hexdigest()}.rows"
        draft = self.folder / f"{uuid.uuid4().hex}.draft"
        self._looked_at.add(file.name)
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
