"""The example package, installed once, and found by this process while a test runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from example_plugin import install


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def plugin(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(installed))
    yield
