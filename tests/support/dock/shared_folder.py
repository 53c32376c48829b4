"""A folder that all workers of pytest share until the suite ends, for what is made once and looked at."""

import os
from pathlib import Path

import pytest


def of_all_workers(factory: pytest.TempPathFactory, name: str) -> Path:
    """The folder, made by whoever asks first; who writes into it locks it."""
    own = factory.getbasetemp()
    folder = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / name
    folder.mkdir(exist_ok=True)
    return folder
