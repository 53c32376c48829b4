"""The example package, installed into a folder of its own, as a user would install it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PLUGIN = Path(__file__).parents[3] / "examples" / "plugin"


def install(folder: Path) -> Path:
    """Install examples/plugin; returns the folder that belongs on the path. Needs no network."""
    source, target = folder / "source", folder / "installed"
    shutil.copytree(PLUGIN, source)  # setuptools builds in the source's folder
    command = [
        sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index",
        "--disable-pip-version-check", "--quiet", "--target", str(target), str(source),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return target


def path_with(installed: Path) -> str:
    """PYTHONPATH of a process that finds the package."""
    return os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH"))))
