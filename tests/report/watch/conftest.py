import time
from collections.abc import Callable
from pathlib import Path

import pytest
from growing_run import GrowingRun
from run_events import Event, make_events


@pytest.fixture
def events_of() -> Callable[..., list[Event]]:
    """The generator `make_events`."""
    return make_events


@pytest.fixture
def growing(tmp_path: Path) -> Callable[..., GrowingRun]:
    """growing(**options of make_events): a run that began a minute ago, whose folder is not there yet."""
    began = time.time() - 60
    return lambda **options: GrowingRun(
        tmp_path / "run", make_events(**{"start": began, **options})
    )
