"""A program of the tool `python` computes and prints, and can do nothing else."""

import contextlib
import os
import platform
import signal
import time
from pathlib import Path

import psutil
import pytest

from rljob_runtime.children.restricted import landlock_version
from rljob_runtime.children.system_calls import SYSCALL_TABLES, filter_program
from rljob_runtime.task.tools.answers import Failed, TookTooLong
from rljob_runtime.task.tools.python_tool import MAX_OUTPUT_BYTES, PROGRAM, run_python

MEMORY = 512 * 2**20


def programs() -> list[psutil.Process]:
    """Restricted ones, of this process."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that ends meanwhile
            if str(PROGRAM) in child.cmdline():
                found.append(child)
    return found


def said(code: str, timeout_seconds: float = 60) -> str:
    return run_python(code, timeout_seconds=timeout_seconds, memory_bytes=MEMORY)


def error_of(code: str, timeout_seconds: float = 60) -> str:
    with pytest.raises(Failed) as caught:
        said(code, timeout_seconds)
    return str(caught.value)


def test_a_program_answers_what_it_prints() -> None:
    assert (
        said("from fractions import Fraction\nprint(sum(Fraction(1, n) for n in (2, 3)))") == "5/6"
    )


def test_installed_packages_can_be_used() -> None:
    assert said("import numpy\nprint(numpy.arange(4).sum())") == "6"


def test_a_program_that_fails_answers_its_output_and_its_error() -> None:
    assert error_of("print('so far')\n1/0") == "so far\nZeroDivisionError: division by zero"
    assert "SyntaxError" in error_of("1 +")


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.execv('/bin/true', ['true'])",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "import socket\nsocket.socket()",
        "import socket\nsocket.socketpair()",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1')",
        "import os\nos.kill(os.getppid(), 9)",
        "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
        "open('a', 'w')",
        "import os\nos.mkdir('a')",
        "import os\nos.memfd_create('a')",
        "import resource, os\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "import fcntl, os\nfcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
        "import fcntl, os\nfcntl.fcntl(os.pipe()[0], 10, 9)",
        "import fcntl, os\nfcntl.ioctl(os.pipe()[0], 0x8901, os.getppid().to_bytes(4, 'little'))",
        "import os\nos.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
        "import os\nos.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "import os\nos.setsid()",
    ],
)
def test_processes_network_signals_and_writing_are_refused(code: str) -> None:
    error = error_of(code)

    assert "Operation not permitted" in error or "Permission denied" in error


IO_PRIORITY = {"x86_64": 251, "aarch64": 30}


def test_a_program_cannot_slow_down_what_its_parent_reads() -> None:
    if platform.machine() not in IO_PRIORITY:
        pytest.skip(f"no filter for {platform.machine()}")
    call = f"libc.syscall({IO_PRIORITY[platform.machine()]}, 1, os.getppid(), 3 << 13)"
    code = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"

    assert said(f"{code}print({call}, os.strerror(ctypes.get_errno()))") == (
        "-1 Operation not permitted"
    )


def test_a_program_has_one_thread() -> None:
    code = "import threading\nthreading.Thread(target=print).start()"

    assert error_of(code) == "RuntimeError: can't start new thread"


def test_files_of_others_cannot_be_changed(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("kept")

    for code in (
        f"open({str(file)!r}, 'w')",
        f"open({str(file)!r}, 'a')",
        f"open({str(file)!r}, 'r+')",
        f"import os\nos.remove({str(file)!r})",
        f"import os\nos.rename({str(file)!r}, 'a')",
        f"import os\nos.chmod({str(file)!r}, 0)",
        f"import os\nos.truncate({str(file)!r}, 0)",
        f"import os\nos.utime({str(file)!r})",
    ):
        assert "not permitted" in error_of(code)
    assert file.read_text() == "kept"


def test_the_environment_and_the_folder_hold_nothing_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_SECRET", "of the job")

    assert said("import os\nprint('A_SECRET' in os.environ, os.listdir('.'))") == "False []"


def test_memory_beyond_the_limit_is_refused() -> None:
    assert error_of("x = bytearray(2**30)") == "MemoryError"


def test_an_endless_loop_ends_at_the_deadline_and_leaves_no_process() -> None:
    started = time.monotonic()

    with pytest.raises(TookTooLong, match="took longer than 2 s"):
        said("while True: pass", timeout_seconds=2)

    assert time.monotonic() - started >= 2
    assert programs() == []


def test_a_program_that_sleeps_or_ignores_signals_ends_at_the_deadline() -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(3600)"
    with pytest.raises(TookTooLong):
        said(code, timeout_seconds=2)


def test_output_is_cut_and_its_program_killed() -> None:
    assert len(said("while True: print('x' * 999)")) <= MAX_OUTPUT_BYTES


def test_a_crash_says_which_signal() -> None:
    assert error_of("import ctypes\nctypes.string_at(0)") == f"killed by {signal.SIGSEGV.name}"


def test_a_program_reads_no_secret_where_the_kernel_can_hide_it(tmp_path: Path) -> None:
    if not landlock_version():
        pytest.skip("this kernel has no Landlock")
    (tmp_path / "answers").write_text("42")

    assert "Permission denied" in error_of(f"open({str(tmp_path / 'answers')!r})")
    assert "Permission denied" in error_of(f"open('/proc/{os.getpid()}/environ')")


def test_other_machines_than_the_known_ones_have_no_filter() -> None:
    assert filter_program("riscv64") is None
    assert {name: len(filter_program(name) or b"") % 8 for name in SYSCALL_TABLES} == dict.fromkeys(
        SYSCALL_TABLES, 0
    )
