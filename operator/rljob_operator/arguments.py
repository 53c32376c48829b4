"""The command line of `rljob-operator`: every field of its settings is an option, checked before anything
starts.

Called by `main`. A wrong value ends the process with exit code 2 and a line that names option, value and what
is right.
"""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from importlib.metadata import version
from typing import Any

from rljob_operator.settings import IMAGES, JOBS, OPERATOR, ProcessOptions, Settings

DESCRIPTION = "Runs RLJobs on Kubernetes: one process a replica, of which one at a time acts."


def parse(arguments: Sequence[str]) -> tuple[Settings, ProcessOptions]:
    """Return the settings of the manifests and the options of the process. Exits if an argument is wrong."""
    parser = argparse.ArgumentParser(
        prog="rljob-operator", description=DESCRIPTION, allow_abbrev=False
    )
    version_line = f"%(prog)s {version('rljob')}"
    parser.add_argument("--version", action="version", version=version_line)
    groups = {name: parser.add_argument_group(name) for name in (IMAGES, JOBS, OPERATOR)}
    for option in (*fields(Settings), *fields(ProcessOptions)):
        _add(groups[option.metadata["group"]], option)
    values = vars(parser.parse_args(arguments))
    values = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value
        for name, value in values.items()
    }
    settings = Settings(**{option.name: values[option.name] for option in fields(Settings)})
    return settings, ProcessOptions(**{o.name: values[o.name] for o in fields(ProcessOptions)})


def _add(group: argparse._ArgumentGroup, option: Field[Any]) -> None:
    options = dict(option.metadata)
    del options["group"]
    flag = options.pop("flag") or f"--{option.name.replace('_', '-')}"
    if option.default is MISSING:
        options["required"] = True
    elif option.default == ():  # may be repeated
        options |= {"action": "append", "default": []}
    else:
        options["default"] = option.default
    group.add_argument(flag, dest=option.name, **options)
