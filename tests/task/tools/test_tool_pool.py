"""Tools answer out of processes of their own, whatever happens there."""

import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import game_package
import pytest

from rljob_api.spec.tools import Tool
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.tools.answers import Answer
from rljob_runtime.task.tools.tool_pool import ToolPool

Asked = Callable[[ToolPool, str, str], Answer]


@pytest.fixture
def pools() -> Iterator[Callable[..., ToolPool]]:
    made: list[ToolPool] = []

    def make(*tools: Tool) -> ToolPool:
        made.append(ToolPool(tools))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def asked(pool: ToolPool, tool: str, *texts: str) -> list[Answer]:
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    for text in texts:
        pool.call(tool, text, answers.put)
    return [answers.get(timeout=240) for _ in texts]


def test_a_calculator_and_a_program_answer(pools: Callable[..., ToolPool]) -> None:
    pool = pools(
        Tool(name="calc", type="calculator", timeout_seconds=60),
        Tool(name="py", type="python", timeout_seconds=60),
    )

    (good,) = asked(pool, "calc", "6*7")
    (bad,) = asked(pool, "calc", "6*")
    (printed,) = asked(pool, "py", "print(6*7)")

    assert (good.text, good.outcome) == ("42", "ok")
    assert (bad.text, bad.outcome) == ("error: not an arithmetic expression", "error")
    assert (printed.text, printed.outcome) == ("42", "ok")
    assert good.seconds > 0


def test_a_program_beyond_its_deadline_is_answered_and_the_next_one_runs(
    pools: Callable[..., ToolPool],
) -> None:
    pool = pools(Tool(name="py", type="python", timeout_seconds=3, concurrency=1))

    slow, fast = asked(pool, "py", "while True: pass", "print(1)")

    assert (slow.text, slow.outcome) == ("error: took longer than 3 s", "timeout")
    assert fast.outcome in ("ok", "timeout")  # a busy machine may not start it in 3 s
    assert slow.seconds >= 3


def test_a_tool_of_no_package_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"'acme.search', which no package .* rljob.tools"):
        ToolPool([Tool(name="search", type="acme.search")])


def test_an_answer_that_no_tokenizer_takes_is_an_error_of_the_tool(
    pools: Callable[..., ToolPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(game_package.install(tmp_path / "tools"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))

    (answer,) = asked(pools(Tool(name="half", type="acme.half")), "half", "a")

    assert answer.outcome == "error"
    assert answer.text.startswith("error: the answer of tool half has half of a surrogate pair")
