"""The operator runs in an image that has neither torch nor Ray nor transformers."""

import pkgutil
import subprocess
import sys

import rljob_operator

HEAVY = {"torch", "ray", "rljob_runtime", "transformers", "kubernetes", "kubernetes_asyncio"}


def test_no_module_of_the_operator_imports_anything_heavy():
    names = [m.name for m in pkgutil.walk_packages(rljob_operator.__path__, "rljob_operator.")]
    code = f"import sys, {', '.join(names)}; print(*sorted(n.split('.')[0] for n in sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert {"kopf", "lightkube"} <= loaded
    assert not loaded & HEAVY
