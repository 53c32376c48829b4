"""Entry point of `rljob`: a Ctrl-C while the command line is imported ends it without a traceback."""

import signal

from rljob_runtime.cli.streams import reopen_closed


def main() -> None:
    """Run `cli.main.main`, and end silently on Ctrl-C during its import."""
    reopen_closed()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rljob_runtime.cli import main as command_line

    signal.signal(signal.SIGINT, before)
    command_line.main()
