"""Small model directories and engines of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import make_reference

from rljob_runtime.rollout.rollout_torch import TorchRollout


@pytest.fixture
def save_reference(tmp_path: Path) -> Callable[[str], tuple[Any, Path]]:
    """Makes a random model of a family and its directory."""

    def save(family: str, seed: int = 0) -> tuple[Any, Path]:
        path = tmp_path / f"{family}-{seed}"
        reference = make_reference(family, seed)
        reference.save_pretrained(path)
        return reference, path

    return save


@pytest.fixture
def make_engine(save_reference: Callable[[str], tuple[Any, Path]]) -> Callable[..., TorchRollout]:
    """Makes an engine of a family; arguments are the engine's."""

    def make(family: str = "qwen3", **changes: Any) -> TorchRollout:
        arguments: dict[str, Any] = {
            "dtype": torch.float32,
            "max_sequences": 64,
            "max_length": 64,
        }
        return TorchRollout(save_reference(family)[1], **(arguments | changes))

    return make
