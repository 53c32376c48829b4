"""A process that gives up its own rights: no files, no network, no other processes, and limited memory.

`restrict` is for a fork that scores responses. As a program, the module runs the code from stdin.
`python_tool` starts it as a file, in an empty folder with an empty environment. It imports nothing of rljob
but `system_calls` beside it. stdin: JSON with code, memory_bytes and cpu_seconds. Exit status 0: the code
ended; 1: it failed, and its error is the last line of stdout; 3: the rights could not be given up.
"""

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

NOT_RESTRICTED = 3
OPEN_FILES = 64
THREADS_OF_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock; the same on all machines
READ_ACCESS, READ_FILE = 0b1101, 0b100
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of rights on files in Landlock, by the version that introduced it: execute, write, read files, list
folders, remove and create each kind; then link, truncate, and device commands."""
NETWORK_RIGHTS, SCOPE_RIGHTS = (4, 0b11), (6, 0b11)
"""Versions of Landlock that can block TCP, and signals and sockets of processes outside, with their bits."""


def main() -> None:
    """Restrict this process, run the code, and print how it failed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    request = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(dict.fromkeys(THREADS_OF_LIBRARIES, "1"))
    seconds = request["cpu_seconds"]
    try:
        _limit(resource.RLIMIT_CPU, seconds)
        restrict(memory_bytes=request["memory_bytes"], readable=[os.getcwd(), *sys.path])
    except OSError as error:
        print(f"{error.strerror or error}", flush=True)  # noqa: T201
        os._exit(NOT_RESTRICTED)
    os._exit(_run(request["code"]))


def _run(code: str) -> int:
    status = 0
    try:
        exec(compile(code, "<call>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        status = int(end.code not in (None, 0))
    except BaseException as error:
        line = traceback.format_exception_only(error)[-1].strip()
        with contextlib.suppress(BaseException):
            print(line)  # noqa: T201
        status = 1
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    return status


def restrict(*, memory_bytes: int, readable: Iterable[str], file_bytes: int = 0) -> None:
    """Give up rights of this process for good. It can read only the libraries of Python and the system, if
    the kernel has Landlock. It writes no file, and reaches no network and no other process.

    memory_bytes: limit of its address space. readable: more folders to read. file_bytes: limit of writes to
    open files. Raises OSError if the kernel, or the machine, cannot restrict it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    program = _filter_program()
    for limit_kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _limit(limit_kind, limit)
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _allow_python_files(libc, readable)
    _check(libc.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)))  # version 3, nothing
    program_buffer = ctypes.create_string_buffer(program, len(program))
    program_header = struct.pack("@HP", len(program) // 8, ctypes.addressof(program_buffer))
    _check(libc.prctl(PR_SET_SECCOMP, 2, program_header, 0, 0))


def landlock_version(libc: ctypes.CDLL | None = None) -> int:
    """Return the kernel's version of Landlock, which hides files; 0 without it."""
    version = (libc or ctypes.CDLL(None)).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(int(version), 0)


def _limit(limit_kind: int, limit: int) -> None:
    hard_limit = resource.getrlimit(limit_kind)[1]
    limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
    resource.setrlimit(limit_kind, (limit, limit))


def _allow_python_files(libc: ctypes.CDLL, readable: Iterable[str]) -> None:
    version = landlock_version(libc)
    if version == 0:
        return
    rights = max(number for since, number in FILE_RIGHTS.items() if version >= since)
    other_rights = [
        bits if version >= since else 0 for since, bits in (NETWORK_RIGHTS, SCOPE_RIGHTS)
    ]
    handled = struct.pack("=QQQ", (1 << rights) - 1, *other_rights)
    ruleset = libc.syscall(CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    _check(min(ruleset, 0))
    roots = {sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", *readable}
    files = ("/dev/null", "/dev/urandom", "/etc/localtime", "/etc/ld.so.cache")
    for path, access in [
        *((root, READ_ACCESS) for root in roots if os.path.isdir(root)),
        *((file, READ_FILE) for file in files if os.path.exists(file)),
    ]:
        descriptor = os.open(path, os.O_PATH)
        _check(libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", access, descriptor), 0))
        os.close(descriptor)
    _check(libc.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _filter_program() -> bytes:
    """Return the seccomp filter. Raises OSError for machines whose system calls are not in the table."""
    spec = spec_from_file_location("system_calls", Path(__file__).with_name("system_calls.py"))
    assert spec is not None and spec.loader is not None, "it lies beside this file"
    sys.modules["system_calls"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    program: bytes | None = module.filter_program(platform.machine())
    if program is None:
        raise OSError(0, f"the system calls of {platform.machine()} are not known")
    return program


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
