"""For all tests: hypothesis judges examples, never this machine's speed; the longest tests begin first."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")

LONG = ("ray", "vllm")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first: one that began last would keep the other workers waiting."""
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in LONG))
