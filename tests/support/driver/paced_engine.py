"""A package with a rollout engine that takes as long for each token of its samples on every machine."""

from pathlib import Path

ENGINE = "paced.torch"
CODE = """
import time

from rljob_runtime.rollout.rollout_table import make_torch


def make(setup):
    engine = make_torch(setup)
    engine.between = lambda: time.sleep(0.005)  # once a step of all samples
    return engine
"""


def write_package(folder: Path) -> Path:
    """Write the package; returns the folder that belongs on the path."""
    (folder / "paced_engine_package.py").write_text(CODE)
    info = folder / "paced-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paced\nVersion: 1.0\n")
    entry = f"[rljob.rollout_engines]\n{ENGINE} = paced_engine_package:make\n"
    (info / "entry_points.txt").write_text(entry)
    return folder
