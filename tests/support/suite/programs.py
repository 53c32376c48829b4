"""Programs that tests need and that are no Python packages: tests are skipped without one, and fail where the
environment's RLJOB_REQUIRE names it."""

import os

import pytest

NAMES = {"browser", "helm", "kubectl", "kueue", "kueue-controller", "mlflow", "prometheus"}
REQUIRED = set(filter(None, os.environ.get("RLJOB_REQUIRE", "").split(",")))


def needs(name: str, program: str | None, missing: str | None = None) -> pytest.MarkDecorator:
    """Of tests that need the program, None where there is none."""
    return pytest.mark.needs(name, program, missing)


def require(name: str, program: str | None, missing: str | None = None) -> None:
    """End the test that asks, where there is no program. missing: what is said then."""
    assert name in NAMES, f"{name} is none of {sorted(NAMES)}"
    if program is None:
        (pytest.fail if name in REQUIRED else pytest.skip)(missing or f"there is no {name}")
