"""What Weights & Biases' own reader finds in the files of an offline run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb")

from wandb.proto.wandb_internal_pb2 import Record  # noqa: E402
from wandb.sdk.internal.datastore import DataStore  # noqa: E402


def records(folder: Path) -> list[Any]:
    """All records of the one run in the folder."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    found = []
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        found.append(record)
    return found


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
