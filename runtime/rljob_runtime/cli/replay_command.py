"""The command `rljob replay`: compute a step of a run again."""

from pathlib import Path
from typing import Annotated

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.output import exit_on_error, print_note, print_text
from rljob_runtime.cli.run_command import AcceptUntested, Local, request_of, train
from rljob_runtime.errors import ConfigError

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]


def replay(
    run: RunFolder,
    step: Annotated[int, typer.Option(min=1, help="The step to compute again.")],
    output: Annotated[
        Path | None, typer.Option(help="The replay's folder; default: RUN-replay-STEP.")
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with the first step, not at a checkpoint.")
    ] = False,
    local: Local = False,
    accept_untested: AcceptUntested = False,
) -> None:
    """Compute a step again, from the nearest checkpoint before it, and prove or refute it."""
    from rljob_api.topology.resolved import resolve
    from rljob_runtime.run.branches import AS_ALONE, BranchSource, check_repeats, verdict

    with exit_on_error():
        source = BranchSource.of(run)
        recorded_steps = source.steps()
        if step not in recorded_steps:
            raise ConfigError(
                f"{run} told no step {step}; its last is {max(recorded_steps, default=0)}"
            )
        job = source.job(AS_ALONE)
        check_repeats(resolve(job).spec)
        after = source.replay_start(step, from_start=from_start)
        folder = output or run.with_name(f"{run.name}-replay-{step}")
        source.branch(folder, after=after, job=job)
        request = request_of(
            job,
            file=folder / "rljob.yaml",
            output=folder,
            resume="yes" if after else "no",
            local=local,
            accept_untested=accept_untested,
            base=source.base,
            until=step,
        )
        if code := train(request):
            raise typer.Exit(code)
        replayed = BranchSource.of(folder)
        replayed_steps = {
            number: result for number, result in replayed.steps().items() if number > after
        }
        judged = verdict(recorded_steps, replayed_steps, step)
    for name, recorded_version, replay_version in source.version_differences(replayed):
        print_note(
            f"{name} is {replay_version}, and was {recorded_version} when the run told the step"
        )
    if judged.refuted:
        print_text(f"step {step} of {run} refuted: {judged.refuted}; the replay is in {folder}")
        raise typer.Exit(ExitCode.DIFFERS)
    print_text(f"step {step} of {run} proven from step {after} on: chain {judged.digest.chain}")
