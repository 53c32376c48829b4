"""Asking a cluster loads what draws and what asks, and nothing that trains."""

import subprocess
import sys

HEAVY = {"torch", "ray", "numpy", "transformers", "rljob_operator"}


def test_the_commands_load_neither_torch_nor_ray():
    code = "import sys, rljob_runtime.cluster.ask; print(*{m.split('.')[0] for m in sys.modules})"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert {"kubernetes", "rich"} <= loaded
    assert not loaded & HEAVY
