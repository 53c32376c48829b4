"""Log-probs of the reference in files: found again, never damaged, and apart where numbers differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import resolve
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.record.kept_logprobs import LogprobCache, logprob_cache_folder, row_key

PROMPT = np.array([1, 2], dtype=np.int64)
NAMES = [row_key(PROMPT, np.arange(length)) for length in (3, 1, 4)]
ROWS = [np.random.default_rng(n).random(n, dtype=np.float32) for n in (3, 1, 4)]


def kept(folder: Path) -> Path:
    """The file that a process leaves which computes all rows."""
    one = LogprobCache(folder=folder)
    one.add(NAMES, Ragged.from_rows(ROWS))
    one.write_new_rows()
    one.write_new_rows()  # nothing is new
    (file,) = folder.iterdir()
    return file


def found(folder: Path) -> list[np.ndarray] | None:
    """By another process."""
    other = LogprobCache(folder=folder)
    other.load_new_files()
    return other.find(NAMES)


def test_what_one_process_keeps_others_find_in_every_bit(tmp_path: Path) -> None:
    waiting = LogprobCache(folder=tmp_path / "rows")
    waiting.load_new_files()
    assert waiting.find(NAMES[:1]) is None

    kept(tmp_path / "rows")

    waiting.load_new_files()
    for rows in (found(tmp_path / "rows"), waiting.find(NAMES)):
        assert rows is not None
        assert [row.tobytes() for row in rows] == [row.tobytes() for row in ROWS]
    assert waiting.find([*NAMES, row_key(PROMPT[:1], np.arange(3))]) is None


def test_prompts_and_responses_that_join_alike_are_other_rows() -> None:
    tokens = np.arange(6)

    assert row_key(tokens[:2], tokens[2:]) != row_key(tokens[:3], tokens[3:])


def test_a_row_that_is_known_keeps_its_numbers(tmp_path: Path) -> None:
    kept(tmp_path)
    other = LogprobCache(folder=tmp_path)
    other.load_new_files()

    rows = other.add(NAMES[:1], Ragged.from_rows([ROWS[0] + 1]))

    assert rows[0].tobytes() == ROWS[0].tobytes()


@pytest.mark.parametrize("damage", ["first bit", "a value's bit", "last bit", "torn", "empty"])
def test_a_damaged_file_is_computed_again_and_healed(tmp_path: Path, damage: str) -> None:
    file = kept(tmp_path)
    whole = file.read_bytes()
    content = bytearray(whole)
    if damage in ("torn", "empty"):
        del content[len(content) // 2 if damage == "torn" else 0 :]
    else:
        content[{"first bit": 0, "a value's bit": -6, "last bit": -1}[damage]] ^= 1
    file.write_bytes(content)

    assert found(tmp_path) is None
    kept(tmp_path)
    assert file.read_bytes() == whole
    assert found(tmp_path) is not None


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = LogprobCache(folder=tmp_path / "file" / "rows")
    one.load_new_files()
    one.add(NAMES, Ragged.from_rows(ROWS))

    one.write_new_rows()

    assert one.find(NAMES) is not None


def folder(place: Path, **changes: Any) -> Path | None:
    """Of a job with pairs; changes: of its sections."""
    own = {key: SMALL_JOB["spec"][key] for key in ("steps", "model", "update", "accelerator")}
    spec = own | {
        "data": {"preferences": {"path": "pairs.jsonl"}},
        "algorithm": {"name": "dpo"},
        "batch": {
            "globalBatchSize": 8,
            "samplesPerPrompt": 2,
            "maxPromptLength": 16,
            "maxResponseLength": 8,
        },
    }
    for section, more in changes.items():
        spec[section] = {**spec[section], **more} if isinstance(more, dict) else more
    job = resolve(read_job({**SMALL_JOB, "spec": spec}))
    return logprob_cache_folder(
        job, model=place / "model", base_dir=place, cache_dir=place / "cache"
    )


def test_what_changes_a_bit_has_a_folder_of_its_own_and_nothing_else_has(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    weights, pairs = tmp_path / "model" / "model.safetensors", tmp_path / "pairs.jsonl"
    weights.write_bytes(b"weights")
    pairs.write_text("{}")
    first = folder(tmp_path)

    others = [
        folder(tmp_path, seed=9),
        folder(tmp_path, batch={"microBatchSize": 2}),
        folder(tmp_path, batch={"maxResponseLength": 9}),
        folder(tmp_path, data={"template": "{question}!"}),
        folder(tmp_path, update={"dtype": "bfloat16"}),
        folder(tmp_path, update={"parallelism": {"tensor": 2}}),
    ]
    alike = [
        folder(tmp_path, steps=99),
        folder(tmp_path, algorithm={"params": {"beta": 0.7, "pairLoss": "ipo"}}),
        folder(tmp_path, update={"optimizer": {"learningRate": 1e-6}}),
    ]
    weights.write_bytes(b"wei9hts")
    others.append(folder(tmp_path))
    weights.write_bytes(b"weights")
    pairs.write_text("{ }")
    others.append(folder(tmp_path))

    assert len({first, *others}) == 1 + len(others)
    assert {*alike} == {first}


def test_responses_that_are_drawn_are_not_kept(tmp_path: Path) -> None:
    job = resolve(read_job(SMALL_JOB))

    assert logprob_cache_folder(job, model=tmp_path, base_dir=tmp_path, cache_dir=tmp_path) is None
