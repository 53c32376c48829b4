"""The bring-up's check of generation, with real vLLM."""

import json
import os
from pathlib import Path

import pytest
from vllm_forks import forked

from rljob_runtime.cli.bring_up.place import CheckContext

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm"), pytest.mark.nightly]
SECONDS = 240.0


def check(place: CheckContext) -> None:
    """In a fork, as the check's engine has a process to itself."""
    from rljob_runtime.cli.bring_up.generation import vllm

    (place.folder / "figures.json").write_text(json.dumps(dict(vllm(place))))
    os._exit(0)


def test_the_check_of_generation_passes(tmp_path: Path) -> None:
    place = CheckContext(
        accelerator="emulated", rank=0, size=1, devices=1, folder=tmp_path, seconds=SECONDS
    )
    log = tmp_path / "log"

    process = forked(check, place, log=log, environment={"OMP_NUM_THREADS": "1"})
    process.join(SECONDS)
    process.kill()

    found = tmp_path / "figures.json"
    assert found.exists(), log.read_text()
    figures = json.loads(found.read_text())
    assert figures["gap_drawn_nats"] < 1e-4
    assert figures["gap_given_nats"] < 1e-4
    assert figures["tokens_per_second"] > 0
