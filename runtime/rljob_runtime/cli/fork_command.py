"""The command `rljob fork`: continue from another run's checkpoint, with another job."""

from pathlib import Path
from typing import Annotated

import typer

from rljob_runtime.cli.output import exit_on_error
from rljob_runtime.cli.replay_command import RunFolder
from rljob_runtime.cli.run_command import (
    AcceptChanges,
    AcceptUntested,
    Local,
    request_of,
    train,
)
from rljob_runtime.errors import ConfigError


def fork(
    run: RunFolder,
    step: Annotated[
        int, typer.Option(min=0, help="The checkpoint to go on from; 0: the beginning.")
    ],
    output: Annotated[Path, typer.Option(help="The branch's folder.")],
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another value of a field of spec: update.optimizer.learningRate=1e-6; null takes it out.",
        ),
    ] = None,
    local: Local = False,
    accept_untested: AcceptUntested = False,
    accept_changes: AcceptChanges = False,
) -> None:
    """Go on from a run's checkpoint in another folder, with the same prompts and noise and another job."""
    from rljob_api.check.yaml_text import parse_yaml
    from rljob_runtime.run.branches import BranchSource

    changes = {}
    with exit_on_error():
        for text in change or ():
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise ConfigError(
                    f"--set {text!r} is no KEY=VALUE, such as update.optimizer.learningRate=1e-6"
                )
            changes[key.removeprefix("spec.")] = parse_yaml(value, name=f"--set {key}")
        source = BranchSource.of(run)
        job = source.job(changes)
        source.check_step(step)
        source.branch(output, after=step, job=job)
        request = request_of(
            job,
            file=output / "rljob.yaml",
            output=output,
            resume="yes" if step else "no",
            local=local,
            accept_untested=accept_untested,
            accept_changes=accept_changes,
            base=source.base,
        )
        raise typer.Exit(train(request))
