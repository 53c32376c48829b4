"""Reference models as Hugging Face directories with a tokenizer of bytes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from reference_models import make_reference

from rljob_runtime.task.tokenizer import save_byte_tokenizer


@pytest.fixture
def save_reference(tmp_path: Path) -> Callable[..., Path]:
    """Saves transformers' model of a family."""

    def save(family: str, seed: int = 0) -> Path:
        path = tmp_path / family
        make_reference(family, seed).save_pretrained(path)
        save_byte_tokenizer(path)
        return path

    return save
