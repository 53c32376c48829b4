"""A reward that hangs, crashes or returns nonsense costs its own score and nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rljob_api.spec.workload import Data, PythonReward, ReasoningGymData, Reward
from rljob_runtime.errors import RewardError
from rljob_runtime.task.rewards.scorer_pool import RewardPool, RewardRequest

DATA = Data(reasoning_gym=ReasoningGymData(dataset="spell_backward"))
SOURCE = """
import os

def reward(prompt, response, answer):
    print("a reward may print")
    if response == "hang":
        while True:
            pass
    if response == "abort":
        os.abort()
    if response == "raise":
        raise ValueError("no oracle")
    return {"none": None, "nan": float("nan"), "text": "1.0"}.get(response, 0.5)
"""


def _request(response: str) -> RewardRequest:
    return RewardRequest(prompt="p", response=response, answer="a", entry={})


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardPool]:
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "mine.py").write_text(SOURCE)
    rewards = [
        Reward(
            name="mine",
            type="python",
            python=PythonReward(path="mine.py"),
            timeout_seconds=1.0,
            weight=2.0,
        ),
        Reward(name="same", type="exact"),
    ]
    pool = RewardPool(rewards, DATA, processes=1, base_dir=folder)
    yield pool
    pool.close()


def test_an_endless_loop_is_killed_at_its_deadline(pool: RewardPool) -> None:
    children = set(psutil.Process().children(recursive=True))

    hung, after = pool.score([_request("hang"), _request("fine")])

    assert hung.total == 0
    assert "took longer than 1 s" in hung.errors["mine"]
    assert after.total == 1.0
    assert after.errors == {}
    left = {child for child in children if child.is_running()}
    assert all(child.status() != psutil.STATUS_ZOMBIE for child in left)


def test_a_crash_costs_one_score_and_the_other_rewards_go_on(pool: RewardPool) -> None:
    (crashed,) = pool.score([RewardRequest(prompt="", response="abort", answer="abort", entry={})])

    assert crashed.parts == {"mine": 0.0, "same": 1.0}
    assert list(crashed.errors) == ["mine"]
    assert "exit status -6" in crashed.errors["mine"]


@pytest.mark.parametrize(
    ("response", "told"),
    [
        ("raise", "ValueError: no oracle"),
        ("none", "returned None"),
        ("nan", "returned nan"),
        ("text", "returned '1.0'"),
    ],
)
def test_errors_and_nonsense_are_told(pool: RewardPool, response: str, told: str) -> None:
    (result,) = pool.score([_request(response)])

    assert result.parts["mine"] == 0.0
    assert told in result.errors["mine"]


def test_weights_multiply_parts_and_results_keep_their_order(pool: RewardPool) -> None:
    results = pool.score([_request("a"), _request("b"), _request("a")])

    assert [result.total for result in results] == [2.0, 1.0, 2.0]
    assert results[0].parts == {"mine": 0.5, "same": 1.0}


def test_a_file_that_fails_on_import_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('at import')\n")
    reward = Reward(name="mine", type="python", python=PythonReward(path="broken.py"))

    with pytest.raises(RewardError, match="did not start"):
        RewardPool([reward], DATA, processes=1, base_dir=tmp_path)


def test_children_end_with_a_killed_parent_even_while_they_hang(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    program = f"""
from pathlib import Path
from rljob_api.spec.workload import Data, JsonlData, PythonReward, Reward
from rljob_runtime.task.rewards.scorer_pool import RewardPool, RewardRequest
reward = Reward(name="mine", type="python", python=PythonReward(path="mine.py"), timeout_seconds=99.0)
data = Data(jsonl=JsonlData(path="x"))
pool = RewardPool([reward], data, processes=1, base_dir=Path({str(tmp_path)!r}))
print("ready", flush=True)
pool.score([RewardRequest(prompt="", response="hang", answer="", entry={{}})])
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    children = psutil.Process(parent.pid).children(recursive=True)

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while any(child.is_running() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)

    assert children
    assert not any(child.is_running() for child in children)
