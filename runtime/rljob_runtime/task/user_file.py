"""Import files of the user with functions of rewards and agents, as Python imports modules.

Called by the child processes that run such functions.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_user_file(file: Path) -> ModuleType:
    """Import the file, with its folder on the path. It may import files in that folder, and its
    definitions can be pickled. Raises whatever the file raises."""
    name = file.stem
    is_taken = not name.isidentifier() or name in sys.modules or importlib.util.find_spec(name)
    if is_taken:
        name = f"rljob_user_{name}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, f"{file} is no Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(file.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec.loader.exec_module(module)
    return module
