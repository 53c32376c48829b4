"""The contract can be used where neither torch nor Ray nor Kubernetes clients are installed."""

import pkgutil
import subprocess
import sys

import rljob_api

HEAVY = {"torch", "ray", "kopf", "numpy", "transformers", "rljob_runtime"}


def modules_after(code):
    code += "\nimport sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_no_module_of_the_contract_imports_anything_heavy():
    names = [m.name for m in pkgutil.walk_packages(rljob_api.__path__, "rljob_api.")]

    loaded = modules_after(f"import {', '.join(names)}")

    assert "pydantic" in loaded
    assert not loaded & HEAVY


def test_help_imports_not_even_pydantic():
    loaded = modules_after("import rljob_runtime.cli.main")

    assert not loaded & ((HEAVY - {"rljob_runtime"}) | {"kubernetes", "pydantic", "rich"})
