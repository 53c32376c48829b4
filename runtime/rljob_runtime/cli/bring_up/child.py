"""One process of a check: `python -m rljob_runtime.cli.bring_up.child TASK`. Started by `course`.

It writes its outcome into a file of the check's folder; a process that ends without that file has crashed. On
SIGUSR1 it prints its stacks.
"""

import faulthandler
import os
import signal
import sys
import traceback
import warnings
from importlib import import_module
from pathlib import Path

import msgspec

from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.cli.bring_up.place import CheckContext, NotApplicable
from rljob_runtime.cli.bring_up.record import CheckOutcome, Figures, Result


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The argument of the process. Fields as in `place.CheckContext` and `checks.Check`."""

    check: str
    work: str
    accelerator: str
    rank: int
    size: int
    devices: int
    folder: str
    seconds: float

    @property
    def result_file(self) -> Path:
        """Return the file for the outcome."""
        return Path(self.folder) / f"result-{self.rank}.json"


def main() -> None:
    """Run the task, write its outcome, and exit with all threads."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    end_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    warnings.simplefilter("ignore")
    outcome = _run(task)
    partial = task.result_file.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(outcome))
    partial.rename(task.result_file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of a library that do not end would keep the process alive


def _run(task: Task) -> CheckOutcome:
    context = CheckContext(
        accelerator=task.accelerator,
        rank=task.rank,
        size=task.size,
        devices=task.devices,
        folder=Path(task.folder),
        seconds=task.seconds,
    )
    module, function = task.work.split(":")
    try:
        work = getattr(import_module(module), function)
        figures: Figures = work(context)
    except NotApplicable as why:
        return CheckOutcome(check=task.check, result=Result.NOT_APPLICABLE, error=str(why))
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return CheckOutcome(check=task.check, result=Result.FAILED, error=text)
    return CheckOutcome(check=task.check, result=Result.PASSED, figures=figures)


if __name__ == "__main__":
    main()
