"""Environments of peers under .bench/, made with uv on first use: same torch, their own packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import ROOT

TORCH = "torch==2.13.0"
QUEUE = ["transferqueue==0.1.11", "ray==2.60.0", "tensordict==0.15.3"]


def make_environment(name: str, packages: list[str], *, torch: str = TORCH) -> Path:
    """Folder of the environment's programs. torch: "" for none. Its wheels come from the first of these that
    is there: $TORCH_WHEELS, the folder beside the checkout, PyTorch's index ($TORCH_BACKEND, else cpu)."""
    folder = ROOT / ".bench" / name
    done = folder / "packages.txt"
    packages = [*filter(None, [torch]), *packages]
    wanted = "\n".join(packages)
    if done.is_file() and done.read_text() == wanted:
        return folder / "bin"
    print(f"making the environment of {name} under {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    uv = str(Path(sys.executable).with_name("uv"))
    folders = [os.environ.get("TORCH_WHEELS", ""), str(ROOT.parent / "shared" / "wheels")]
    wheels = next((place for place in folders if place and Path(place).is_dir()), None)
    source = (
        ["--find-links", wheels]
        if wheels
        else ["--torch-backend", os.environ.get("TORCH_BACKEND", "cpu")]
    )
    install = [
        uv,
        "pip",
        "install",
        "-q",
        "--compile-bytecode",
        "--no-config",
        "-p",
        str(folder),
        *source,
    ]
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
    subprocess.run([*install, *packages], check=True)
    done.write_text(wanted)
    return folder / "bin"
