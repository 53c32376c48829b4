"""For all tests: hypothesis judges examples, never this machine's speed; the longest tests begin first; torch
computes in one thread, since tests run beside each other and threads without a processor spin."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from page_tables import shrink_page_tables
from programs import NAMES, REQUIRED, require

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")

LONG = ("ray", "vllm", "run")
ID_CHARACTERS = 100
"""Of a test's parameter that names it. Each worker holds and sends all names."""


@pytest.fixture(autouse=True)
def recursion_limit() -> Iterator[None]:
    """Commands and the operator raise it for their process, which is here that of all tests."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)


def pytest_configure() -> None:
    """A program that nobody knows would be required in vain."""
    if unknown := REQUIRED - NAMES:
        raise pytest.UsageError(f"RLJOB_REQUIRE: {sorted(unknown)} are none of {sorted(NAMES)}")


def pytest_make_parametrize_id(val: object) -> str | None:
    """A long text is named by its beginning and its length."""
    if isinstance(val, str | bytes) and len(val) > ID_CHARACTERS:
        return f"{val[: ID_CHARACTERS // 4]!a} and so on, {len(val)} in all"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, which start the program."""
    for marker in item.iter_markers("needs"):
        require(*marker.args)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Each file's tests leave memory behind, which forks of the next pay for."""
    if nextitem is not None and nextitem.path != item.path:
        shrink_page_tables()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What shares a server or an engine must not be spread over workers, each with one of its own; what was
    collected, half a GiB, stays until the end."""
    for item in session.items if getattr(session.config.option, "loadgroup", False) else []:
        grouped = item.get_closest_marker("xdist_group") is not None
        if grouped and "@" not in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: pytest-xdist does not keep its group together")
    if session.items:
        shrink_page_tables()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first: one that began last would keep the other workers waiting."""
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in LONG))
