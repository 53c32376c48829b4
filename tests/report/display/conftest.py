from collections.abc import Callable

import pytest
from run_events import Event, make_events


@pytest.fixture
def events_of() -> Callable[..., list[Event]]:
    """The generator `make_events`."""
    return make_events
