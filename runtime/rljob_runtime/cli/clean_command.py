"""The command `rljob clean`."""

from rljob_runtime.cli.output import print_text


def clean() -> None:
    """Remove what killed processes of runs left in this machine's folder of temporary files."""
    from rljob_runtime.children.owned_folders import remove_abandoned

    removed = remove_abandoned()
    for folder in removed:
        print_text(f"{folder}")
    print_text(f"{len(removed)} folder{'' if len(removed) == 1 else 's'} removed")
