"""The operator runs in an image that has neither torch nor Ray nor transformers."""

import pkgutil
import subprocess
import sys

import rljob_operator

HEAVY = {"torch", "ray", "rljob_runtime", "transformers", "kubernetes", "kubernetes_asyncio"}


def test_no_module_of_the_operator_imports_anything_heavy():
    names = [m.name for m in pkgutil.walk_packages(rljob_operator.__path__, "rljob_operator.")]
    # kopf would import the client of the extra `cluster`, which the operator's image does not have.
    code = (
        "import sys; sys.modules['kubernetes'] = None\n"
        f"import {', '.join(names)}\n"
        "print(*{name.split('.')[0] for name, module in sys.modules.items() if module})"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert {"kopf", "lightkube"} <= loaded
    assert not loaded & HEAVY
