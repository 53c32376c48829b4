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
    """Settings of the manifests, and options of the process. Exits where an argument is wrong."""
    parser = argparse.ArgumentParser(
        prog="rljob-operator", description=DESCRIPTION, allow_abbrev=False
    )
    told = f"%(prog)s {version('rljob')}"
    parser.add_argument("--version", action="version", version=told)
    groups = {name: parser.add_argument_group(name) for name in (IMAGES, JOBS, OPERATOR)}
    for option in (*fields(Settings), *fields(ProcessOptions)):
        _add(groups[option.metadata["group"]], option)
    given = vars(parser.parse_args(arguments))
    given = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value
        for name, value in given.items()
    }
    settings = Settings(**{option.name: given[option.name] for option in fields(Settings)})
    return settings, ProcessOptions(**{o.name: given[o.name] for o in fields(ProcessOptions)})


def _add(group: argparse._ArgumentGroup, option: Field[Any]) -> None:
    how = dict(option.metadata)
    del how["group"]
    flag = how.pop("flag") or f"--{option.name.replace('_', '-')}"
    if option.default is MISSING:
        how["required"] = True
    elif option.default == ():  # may be repeated
        how |= {"action": "append", "default": []}
    else:
        how["default"] = option.default
    group.add_argument(flag, dest=option.name, **how)
