"""The small job, as a file, and runs of it that several tests look at."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_tokenizer import save_chat_tokenizer
from driver_world import Boundaries
from shared_folder import of_all_workers
from whole_runs import SMALL_JOB, RunsOfAll

from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.tiny_recipe import CONFIG
from rljob_runtime.models.weights import save_hf
from rljob_runtime.task.tokenizer import MARKER, save_byte_tokenizer

CHAT_SIGNS = ["<unk>", "<user>", "<assistant>", "1:", "2:", "3:"]


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the small job with changes given as dotted paths under spec."""

    def write(**changes: Any) -> Path:
        job = json.loads(json.dumps(SMALL_JOB))
        for path, value in changes.items():
            *parents, last = path.split("__")
            place = job["spec"]
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        return file

    return write


@pytest.fixture
def boundaries(tmp_path: Path) -> Iterator[Boundaries]:
    """Those that a driver passes from now on."""
    with Boundaries(tmp_path).counted() as found:
        yield found


@pytest.fixture
def run_of_all(tmp_path_factory: pytest.TempPathFactory) -> RunsOfAll:
    """run_of_all(job_file(...)): made by the first test that asks for it."""
    return RunsOfAll(of_all_workers(tmp_path_factory, "runs-of-all"))


@pytest.fixture
def untrained_model(tmp_path: Path) -> Path:
    """The directory of a model of `tiny`'s shape that knows nothing, beside the job's file."""
    folder = tmp_path / "model"
    decoder = Decoder(read_architecture(CONFIG))
    decoder.initialize(1)
    save_hf(decoder.named_hf_parameters(), folder=folder, config=CONFIG)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture
def untrained_chat_model(untrained_model: Path) -> Path:
    """The same, whose tokens are words in a chat template."""
    untrained_model.joinpath(MARKER).unlink()
    signs = [f"word{i}" for i in range(CONFIG["vocab_size"])]
    signs[: len(CHAT_SIGNS)] = CHAT_SIGNS
    signs[CONFIG["eos_token_id"]] = "<end>"
    save_chat_tokenizer(untrained_model, signs)
    return untrained_model
