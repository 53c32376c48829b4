"""The command `rljob stacks`."""

from pathlib import Path

from rljob_runtime.cli.cluster.cluster_commands import Context, Namespace, stacks_of_job
from rljob_runtime.cli.output import RunOrName, exit_on_error, print_text


def stacks(
    run: RunOrName,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Write where each process of a run that lives stands now, and print who is missing."""
    directory = Path(run)
    if not directory.exists() and directory.name == run:
        print_text(stacks_of_job(run, namespace=namespace, context=context).rstrip())
        return
    from rljob_runtime.record.hang_files import SUMMARY
    from rljob_runtime.run.hangs.request import ask_run

    with exit_on_error():
        folder = ask_run(directory)
    print_text((folder / SUMMARY).read_text().rstrip())
    print_text(f"\n{folder}")
