"""Tell whether an image's Megatron Core and MindSpeed fit each other: `megatron_fits.py megatron|mindspeed`.

Called at the end of runtime-ascend.Dockerfile, and by hand. Prints versions and what was imported, and ends
with 1 where something does not fit. A machine that builds images has no device: what cannot be imported for
that alone is said, and is no misfit.
"""

import re
import sys
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from rljob_runtime.update.update_megatron.core import ADAPTOR, CALLS, VERSIONS

PACKAGES = ("torch", "torch-npu", "numpy", "transformers", "megatron-core")
NO_DEVICE = re.compile(r"lib\S+\.so\S*: cannot open shared object file|call acl api failed")
"""A library of CANN or of the driver; what torch_npu says where it calls a device."""


def look(engine: str) -> tuple[list[str], list[str]]:
    """What was seen, and what does not fit. Leaves imported what could be."""
    # Before MindSpeed is imported, which has importlib.metadata answer for Transformer Engine.
    held = {name: installed(name) for name in PACKAGES}
    core = held["megatron-core"]
    seen = [f"python {sys.version.split()[0]}", *(f"{name} {held[name]}" for name in PACKAGES)]
    wrong = [] if core.startswith(VERSIONS) else [f"Megatron Core {core} is none of {VERSIONS}"]
    wanted: dict[str, list[str]] = {}
    if engine == "mindspeed":
        revision = mindspeed()
        seen.append(f"mindspeed {revision}")
        if not re.search(rf"core_r{re.escape(core)}\b", revision):
            wrong.append(f"MindSpeed {revision} does not adapt Megatron Core {core}")
        wanted[ADAPTOR] = []  # before Megatron
    for name, module in CALLS.items():
        wanted.setdefault(module, []).append(name)
    for module, names in wanted.items():
        try:
            imported = import_module(module)
        except Exception as error:  # whatever a module does as it is imported
            told = f"{module}: {type(error).__name__}: {error}"
            if NO_DEVICE.search(str(error)):
                seen.append(f"not imported without a device: {told}")
            else:
                wrong.append(told)
        else:
            seen.append(f"imported {module} {' '.join(names)}".rstrip())
            wrong += [f"{module} has no {name}" for name in names if not hasattr(imported, name)]
    return seen, wrong


def installed(name: str) -> str:
    """The version of a package, or `none`."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def mindspeed() -> str:
    """Branch and commit of MindSpeed's sources, which lie beside them; or `none`."""
    found = find_spec("mindspeed")
    for folder in (found.submodule_search_locations or ()) if found else ():
        file = Path(folder).parent / "REVISION"
        if file.is_file():
            return file.read_text().strip()
    return "none"


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module=r"megatron\.")
    seen, wrong = look(sys.argv[1])
    sys.stdout.write("\n".join([*seen, *(f"does not fit: {line}" for line in wrong)]) + "\n")
    sys.exit(1 if wrong else 0)
