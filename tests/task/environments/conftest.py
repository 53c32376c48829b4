"""Games of a package that this process and its children find."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import game_package
import pytest

from rljob_api.spec.environment import Environment
from rljob_runtime.task.environments.game_pool import GamePool


@pytest.fixture(autouse=True)
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(game_package.install(tmp_path / "games"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def environment() -> Callable[..., Environment]:
    def make(name: str = "acme.countdown", **changes: Any) -> Environment:
        fields: dict[str, Any] = {"name": name, "timeout_seconds": 60.0, "concurrency": 1}
        return Environment(**(fields | changes))

    return make


@pytest.fixture
def pools() -> Iterator[Callable[..., GamePool]]:
    made: list[GamePool] = []

    def make(*environments: Environment) -> GamePool:
        made.append(GamePool(environments))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
