"""Packages that this process finds while a test runs: the example, installed once, and small ones."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_plugin import install

from rljob_runtime.extensions import ExtensionKind


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def plugin(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(installed))
    yield


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a package of one module that offers things under names."""

    def install(code: str, *, name: str = "acme-rl", **offers: str) -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [
            f"[{ExtensionKind[kind].value}]\n{offered} = {module}"
            for kind, offered in offers.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(f"{line}:make" for line in lines) + "\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install
