"""Asking a cluster loads what draws and what asks, and nothing that trains."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "ray", "numpy", "transformers", "rljob_operator"}


@pytest.mark.parametrize(
    "modules",
    [
        "rljob_runtime.cli.cluster.ask",
        "rljob_runtime.cli.doctor.gather, rljob_runtime.cli.doctor.findings_text, "
        "rljob_runtime.cli.doctor.probe.judge",
    ],
)
def test_the_commands_load_neither_torch_nor_ray(modules):
    code = f"import sys, {modules}; print(*{{m.split('.')[0] for m in sys.modules}})"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert {"kubernetes", "rich"} <= loaded
    assert not loaded & HEAVY
