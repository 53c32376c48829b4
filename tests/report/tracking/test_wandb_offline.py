"""What Weights & Biases writes into the files of an offline run, read by the messages of its protocol."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb")

from wandb.proto.wandb_internal_pb2 import Record

HEADER_BYTES, BLOCK_BYTES = 7, 32768
FULL, FIRST, _, LAST = range(1, 5)


def payloads(data: bytes) -> Iterator[bytes]:
    """What a log in LevelDB's format holds: blocks of records, which may be parts of one."""
    place, parts = HEADER_BYTES, b""
    while place + 7 <= len(data):
        if (left := BLOCK_BYTES - place % BLOCK_BYTES) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + 7 : place + 7 + length]
        parts = part if kind in (FULL, FIRST) else parts + part
        place += 7 + length
        if kind in (FULL, LAST):
            yield parts


def records(folder: Path) -> list[Any]:
    """All records of the one run in the folder."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return [Record.FromString(payload) for payload in payloads(file.read_bytes())]


def items(record: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record}


def test_history_config_and_end_are_in_its_files(tracked: Callable) -> None:
    run = tracked(wandb={"project": "sums", "mode": "offline"})
    run.begin(algorithm="grpo")
    run.step(1, reward__mean=0.25)
    run.step(2, reward__mean=0.5)
    run.end("failed")

    found = records(run.folder)

    assert run.warned == []
    (started,) = [record.run for record in found if record.HasField("run")]
    assert (started.project, started.display_name) == ("sums", "small")
    config = {i.key: json.loads(i.value_json) for i in started.config.update}
    assert config["algorithm"] == "grpo"
    rows = [items(record.history.item) for record in found if record.HasField("history")]
    told = [(row["step"], row["reward/mean"], row["phases/generate"]) for row in rows]
    assert told == [(1, 0.25, 1.5), (2, 0.5, 1.5)]
    assert [record.exit.exit_code for record in found if record.HasField("exit")] == [1]
