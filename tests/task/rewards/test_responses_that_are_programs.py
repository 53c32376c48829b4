"""Scorers of data sets evaluate parts of a response. One that is a program reaches nothing, and is noticed
where it changes what scores."""

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from wait_until import wait_until

from rljob_api.spec.workload import Data, PythonReward, ReasoningGymData, Reward
from rljob_runtime.children.restricted import landlock_version
from rljob_runtime.errors import ConfigError, GuardStop
from rljob_runtime.task.data.gym import import_factory, make_dataset, question_of
from rljob_runtime.task.rewards import restricted_scorers
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.restricted_scorers import RestrictedScorers
from rljob_runtime.task.rewards.scorer_pool import RewardPool
from rljob_runtime.task.rewards.scorers import make_scorer

EVALUATES = "spiral_matrix"
QUESTION = question_of(make_dataset(EVALUATES, {}, seed=1, size=1)[0])
DATA = Data(reasoning_gym=ReasoningGymData(dataset=EVALUATES))
MODULE = "__import__('sys').modules['reasoning_gym.algorithmic.spiral_matrix']"
CHANGES = f"setattr({MODULE}.SpiralMatrixDataset, 'score_answer', lambda *_: 1.0)"


def asks(text: str) -> RewardRequest:
    return RewardRequest(prompt="", response=text, answer=QUESTION.answer, entry=QUESTION.entry)


@pytest.fixture
def pool_of(tmp_path: Path) -> Iterator[Callable[..., RewardPool]]:
    """pool_of(reward, ...): one process."""
    made: list[RewardPool] = []

    def of(*rewards: Reward) -> RewardPool:
        made.append(RewardPool(rewards, DATA, processes=1, base_dir=tmp_path))
        return made[-1]

    yield of
    for pool in made:
        pool.close()


def writes(file: Path) -> str:
    return f"__import__('pathlib').Path({str(file)!r}).write_text('written')"


@pytest.mark.parametrize("restricted", [None, False], ids=["as it is", "not restricted"])
def test_a_response_writes_a_file_where_its_scorer_is_not_restricted_alone(
    pool_of: Callable[..., RewardPool], tmp_path: Path, restricted: bool | None
) -> None:
    pool = pool_of(Reward(name="right", type="dataset", restricted=restricted))

    found = pool.score([asks(writes(tmp_path / "mark")), asks(QUESTION.answer)])

    assert [result.total for result in found] == [0.0, 1.0]
    assert (tmp_path / "mark").exists() is (restricted is False)


def test_a_response_that_changes_the_scorer_ends_the_run_with_its_batch(
    pool_of: Callable[..., RewardPool],
) -> None:
    pool = pool_of(Reward(name="right", type="dataset", threshold=0.5))
    assert pool.score([asks("no idea")])[0].total == 0.0
    pool.end_batch()

    found = pool.score([asks(CHANGES), asks("no idea")])

    assert [result.total for result in found] == [0.0, 1.0]
    with pytest.raises(
        GuardStop, match=r"reward right found '[a-z]+' right, which 3 new processes"
    ):
        pool.end_batch()


def test_a_scorer_that_finds_any_text_right_for_some_answers_is_no_changed_one(
    tmp_path: Path,
) -> None:
    data = Data(reasoning_gym=ReasoningGymData(dataset="game_of_life_halting"))
    made = make_dataset("game_of_life_halting", {}, seed=1, size=8)
    question = question_of(next(item for item in made if str(item["answer"]) == "False"))
    pool = RewardPool([Reward(name="right", type="dataset")], data, processes=1, base_dir=tmp_path)
    request = RewardRequest(
        prompt="", response="any text", answer=question.answer, entry=question.entry
    )

    assert pool.score([request])[0].total == 1.0
    pool.end_batch()
    pool.close()


def test_a_scorer_that_decides_by_chance_is_no_changed_one(
    pool_of: Callable[..., RewardPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(Reward(name="right", type="dataset"))
    assert pool.score([asks(QUESTION.answer)])[0].total == 1.0
    found = iter(
        [False, False, False, True]
    )  # nothing is right for the old process; two new ones err
    asked = []

    def finds(*one: object, **_: object) -> bool:
        asked.append(one)
        return next(found)

    monkeypatch.setattr(pool, "_is_right", finds)

    pool.end_batch()

    assert len(asked) == 4


def test_a_change_is_noticed_too_where_its_process_ended_before_the_batch_did(
    pool_of: Callable[..., RewardPool],
) -> None:
    pool = pool_of(Reward(name="right", type="dataset"))

    changes = CHANGES.replace("1.0", "eval(_[1]) if 'exit' in _[1] else 1.0")

    found = pool.score([asks(changes), asks("no idea"), asks("__import__('os')._exit(0)")])

    assert [result.total for result in found] == [0.0, 1.0, 0.0]
    with pytest.raises(
        GuardStop, match="reward right found 'no idea' right, which 3 new processes"
    ):
        pool.end_batch()


def forks() -> list[psutil.Process]:
    """Of the only pool."""
    return [
        fork
        for child in psutil.Process().children()
        if "rljob_runtime.task.rewards.scorer_child" in child.cmdline()
        for fork in child.children()
        if fork.status() != psutil.STATUS_ZOMBIE
    ]


def test_the_process_of_the_next_batch_is_made_while_nothing_is_scored(
    pool_of: Callable[..., RewardPool],
) -> None:
    pool = pool_of(Reward(name="right", type="dataset"))
    (first,) = forks()

    pool.score([asks(QUESTION.answer)])
    wait_until("there are two", lambda: len(forks()) == 2)
    (second,) = set(forks()) - {first}
    pool.end_batch()

    assert first not in forks()
    assert second in forks()
    assert pool.score([asks(QUESTION.answer)])[0].total == 1.0


def test_a_process_that_ended_by_itself_has_changed_nothing(
    pool_of: Callable[..., RewardPool],
) -> None:
    pool = pool_of(Reward(name="right", type="dataset"))
    (fork,) = forks()

    fork.kill()
    wait_until("the fork has ended", lambda: fork.status() == psutil.STATUS_ZOMBIE)
    found = pool.score([asks(QUESTION.answer), asks("no idea")])
    pool.end_batch()

    assert [result.total for result in found] == [1.0, 0.0]


def test_what_a_response_changed_ends_with_its_batch(
    pool_of: Callable[..., RewardPool],
) -> None:
    pool = pool_of(Reward(name="right", type="dataset"))
    pool.score([asks(CHANGES)])

    with pytest.raises(GuardStop):
        pool.end_batch()

    assert pool.score([asks("no idea")])[0].total == 0.0


TRIES = """
import os, signal, socket, subprocess
from pathlib import Path

seen = []

def reward(prompt, response, answer):
    if response == "count":
        seen.append(1)
        return float(len(seen))
    done = TRIES[response](answer)
    raise AssertionError(f"it could: {done}")

def old_environment():
    import ctypes
    libc = ctypes.CDLL(None)
    libc.getauxval.restype = ctypes.c_ulong
    libc.getauxval.argtypes = [ctypes.c_ulong]
    end = libc.getauxval(31)  # AT_EXECFN, above the environment
    return "RLJOB_TEST_SECRET" in ctypes.string_at(end - 4096, 4096).decode(errors="replace")

def multiplied():
    import numpy
    return (numpy.ones((600, 600)) @ numpy.ones((600, 600))).sum()

def forge(answer):
    for number in range(64):
        try:
            os.write(number, b'{"score": 1.0}' + bytes([10]))
        except OSError:
            pass
    raise ValueError("forged")

TRIES = {
    "reads": lambda answer: Path(answer).read_text(),
    "lists": lambda answer: os.listdir(Path(answer).parent),
    "connects": lambda answer: socket.create_connection(("127.0.0.1", int(answer)), 5),
    "starts a process": lambda answer: subprocess.run(["true"]),
    "forks": lambda answer: os.fork(),
    "kills": lambda answer: os.kill(os.getppid(), signal.SIGKILL),
    "environment": lambda answer: os.environ["RLJOB_TEST_SECRET"],
    "memory": lambda answer: len(bytearray(8 << 30)),
    "leaves": lambda answer: os._exit(9),
    "old environment": lambda answer: old_environment(),
    "multiplies": lambda answer: multiplied(),
    "forges": forge,
}
"""


@pytest.fixture
def tries(
    pool_of: Callable[..., RewardPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], str]:
    """tries("reads", answer): the error of a restricted function that tries it."""
    (tmp_path / "tries.py").write_text(TRIES)
    monkeypatch.setenv("RLJOB_TEST_SECRET", "token")
    own = PythonReward(path="tries.py")
    pool = pool_of(Reward(name="own", type="python", python=own, restricted=True))

    def said(what: str, answer: str = "") -> str:
        (found,) = pool.score([RewardRequest(prompt="", response=what, answer=answer, entry={})])
        return found.errors.get("own", "")

    said.pool = pool  # type: ignore[attr-defined]
    return said


def test_a_restricted_function_reaches_nothing(tries: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "answers.txt").write_text("42")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        refused = {
            "connects": tries("connects", port),
            "starts a process": tries("starts a process"),
            "forks": tries("forks"),
            "kills": tries("kills"),
        }
    assert all("PermissionError" in said for said in refused.values()), refused
    if landlock_version():
        assert "PermissionError" in tries("reads", str(tmp_path / "answers.txt"))
        assert "PermissionError" in tries("lists", str(tmp_path / "answers.txt"))
    assert tries("environment") == "reward own: KeyError: 'RLJOB_TEST_SECRET'"
    assert tries("old environment") == "reward own: AssertionError: it could: False"
    assert tries("multiplies") == "reward own: AssertionError: it could: 216000000.0"
    assert tries("memory") == "reward own: MemoryError: "
    assert tries("leaves") == "reward own: ended its process with exit status 9"


def test_a_response_that_forges_answers_ends_the_run(
    tries: Callable[..., str],
) -> None:
    with pytest.raises(
        GuardStop, match="reward own: a response has changed the process that scores"
    ):
        tries("forges")
    assert tries("environment") == "reward own: KeyError: 'RLJOB_TEST_SECRET'"


def test_each_batch_begins_with_the_state_that_the_file_was_imported_with(
    tries: Callable[..., str],
) -> None:
    pool: RewardPool = tries.pool  # type: ignore[attr-defined]
    count = RewardRequest(prompt="", response="count", answer="", entry={})
    first = [result.total for result in pool.score([count, count])]

    pool.end_batch()

    assert (first, pool.score([count])[0].total) == ([1.0, 2.0], 1.0)


def test_a_machine_that_cannot_restrict_refuses_the_reward_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cannot(**_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(restricted_scorers, "restrict", cannot)

    with pytest.raises(ConfigError, match="cannot be restricted on this machine: Function not"):
        RestrictedScorers({}, stacks=2, readable=[])


@pytest.mark.nightly
def test_no_data_set_has_a_scorer_that_lets_a_response_write(tmp_path: Path) -> None:
    names = sorted(import_factory().DATASETS.keys() - {"composite"})
    scorers, asked = {}, {}
    for name in names:
        data = Data(reasoning_gym=ReasoningGymData(dataset=name))
        scorers[name] = make_scorer(Reward(name="d", type="dataset"), data, Path())
        asked[name] = question_of(make_dataset(name, {}, seed=1, size=1)[0])
    texts = [writes(tmp_path / "mark"), f"[[{writes(tmp_path / 'mark')}]]"]
    with open(tmp_path / "stacks", "wb") as stacks:
        fork = RestrictedScorers(scorers, stacks=stacks.fileno(), readable=sys.path)
        for name, question in asked.items():
            for text in texts:
                fork.score(
                    name,
                    RewardRequest(
                        prompt="", response=text, answer=question.answer, entry=question.entry
                    ),
                )
            fork.renew()

    assert not (tmp_path / "mark").exists()
