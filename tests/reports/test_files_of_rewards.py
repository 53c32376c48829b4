"""Reward files that Python runs were refused, or did not work: with dataclasses, files beside them, async
functions."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.workload import Data, JsonlData, PythonReward, Reward
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.reward_problems import reward_problems
from rljob_runtime.task.rewards.scorer_pool import RewardPool

DATA = Data(jsonl=JsonlData(path="rows.jsonl"))
REQUEST = RewardRequest(prompt="", response="right", answer="right", entry={})
MINE = [Reward(name="mine", type="python", python=PythonReward(path="mine.py"))]

PLAIN = "def reward(prompt, response, answer):\n    return float(response == answer)\n"
FILES: dict[str, str | bytes] = {
    "a byte order mark": "\ufeff" + PLAIN,
    "a coding line": "# -*- coding: latin-1 -*-\nNAME = 'é'\n".encode("latin-1") + PLAIN.encode(),
    "an annotated callable": (
        "from collections.abc import Callable\nreward: Callable[..., float] = lambda p, r, a: 1.0\n"
    ),
    "a function within try": "try:\n    import nothing_here\nexcept ImportError:\n    "
    + PLAIN.replace("\n", "\n    ").strip()
    + "\n",
    "an async function": "async " + PLAIN,
    "postponed annotations": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Right:\n    value: float = 1.0\n"
        "def reward(prompt, response, answer):\n    return Right().value\n"
    ),
    "processes": (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "def right(text):\n    return 1.0\n"
        "def reward(prompt, response, answer):\n"
        "    with ProcessPoolExecutor(1) as pool:\n        return pool.submit(right, response).result()\n"
    ),
    "a file beside it": (
        "from helpers import right\ndef reward(prompt, response, answer):\n    return right()\n"
    ),
    "a number of numpy": "import numpy\ndef reward(prompt, response, answer):\n    return numpy.float32(1)\n",
    "a truth of numpy": "import numpy\ndef reward(prompt, response, answer):\n    return numpy.bool_(True)\n",
    "a decimal": (
        "from decimal import Decimal\ndef reward(prompt, response, answer):\n    return Decimal('1.0')\n"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder, with a file beside the reward's."""
    (tmp_path / "helpers.py").write_text("def right():\n    return 1.0\n")
    return tmp_path


def write(file: Path, text: str | bytes) -> None:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())


def scored(folder: Path) -> Any:
    pool = RewardPool(MINE, DATA, processes=1, base_dir=folder)
    try:
        (result,) = pool.score([REQUEST])
        return result
    finally:
        pool.close()


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_what_python_takes_is_a_reward(folder: Path, text: str | bytes) -> None:
    write(folder / "mine.py", text)

    assert reward_problems(MINE, base_dir=folder) == []
    result = scored(folder)
    assert (result.total, result.errors) == (1.0, {})


def test_a_module_of_the_working_folder_is_not_taken_for_pythons(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "mine.py", PLAIN)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "random.py").write_text("raise RuntimeError('this is not the random of Python')\n")
    monkeypatch.chdir(elsewhere)

    assert scored(folder).total == 1.0


def test_a_reward_file_may_have_the_name_of_a_module(folder: Path) -> None:
    write(folder / "json.py", "import json as own\n" + PLAIN)
    named = [Reward(name="mine", type="python", python=PythonReward(path="json.py"))]
    pool = RewardPool(named, DATA, processes=1, base_dir=folder)

    (result,) = pool.score([REQUEST])
    pool.close()

    assert (result.total, result.errors) == (1.0, {})


@pytest.mark.parametrize("value", ["'1'", "None", "float('nan')", "[1.0, 2.0]"])
def test_what_is_no_number_is_an_error_and_says_so(folder: Path, value: str) -> None:
    write(folder / "mine.py", f"def reward(prompt, response, answer):\n    return {value}\n")

    error = scored(folder).errors["mine"]

    assert "must return a finite number" in error


def test_why_the_rewards_process_did_not_start_stands_in_the_message(folder: Path) -> None:
    write(folder / "mine.py", "import nothing_of_this_name\n" + PLAIN)

    with pytest.raises(Exception, match="No module named 'nothing_of_this_name'") as raised:
        RewardPool(MINE, DATA, processes=1, base_dir=folder)

    assert "spec.rewards" in str(raised.value)
    assert json.dumps(str(raised.value)) and os.linesep not in str(raised.value)
