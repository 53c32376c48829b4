"""The system calls that a restricted program may not make, as a filter for the kernel (seccomp). Pure.

`restricted` calls it. Numbers are from the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h). Calls that are not listed stay allowed. The filter blocks network,
processes and threads, writing of files, signals, and calls that would bypass it.
"""

import errno
import os
import struct
from dataclasses import dataclass

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
LOAD, EQUAL, SET, RETURN = 0x20, 0x15, 0x45, 0x06  # BPF: ld [k], jeq #k, jset #k, ret #k
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
SIGNALLING = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: the process that a file signals
TERMINAL = (0x8901, 0x8902, 0x5412, 0x541C)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX


@dataclass(frozen=True, slots=True, kw_only=True)
class SyscallTable:
    """The system calls of a machine architecture. audit: its AUDIT_ARCH. refused: calls that fail. unknown:
    calls that appear not to exist, so that the C library uses older ones. flags: calls by the index of the
    argument with flags of opening. commands: values of the second argument that fail, by call."""

    audit: int
    refused: tuple[int, ...]
    unknown: tuple[int, ...]
    flags: dict[int, int]
    commands: dict[int, tuple[int, ...]]


# fmt: off
COMMON = (  # the same on both: pidfds, io_uring, mounts, fchmodat2, setxattrat and removexattrat
    424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 442, 452, 463, 466, 467,
)
SYSCALL_TABLES = {
    "x86_64": SyscallTable(
        audit=0xC000003E,
        refused=(
            41, 53, 56, 57, 58, 59, 322,  # socket, socketpair, clone, fork, vfork, execve, execveat
            109, 112, 142, 144, 251, 256, 279, 314,  # groups, schedulers and memory of processes
            62, 200, 234, 129, 297, 101, 310, 311,  # signals, ptrace, other processes' memory
            85, 82, 264, 316, 83, 258, 84, 86, 265, 87, 263, 88, 266, 133, 259,  # names of files
            90, 91, 268, 92, 93, 94, 260, 76, 77, 132, 235, 261, 280,  # modes, owners, sizes, times
            188, 189, 190, 197, 198, 199, 285,  # attributes, fallocate
            29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241, 319,  # shared memory, queues, memfd
            155, 161, 165, 166, 272, 308, 246, 320, 175, 313, 176, 169, 167, 168,  # root's
            160, 302, 141, 203, 164, 227, 159, 170, 171, 172, 173, 250, 248, 249, 298, 321, 323,
            *COMMON,
        ),
        unknown=(435, 437),  # clone3, openat2
        flags={2: 1, 257: 2},  # open, openat
        commands={72: SIGNALLING, 16: TERMINAL},  # fcntl, ioctl
    ),
    "aarch64": SyscallTable(
        audit=0xC00000B7,
        refused=(
            198, 199, 220, 221, 281,  # socket, socketpair, clone, execve, execveat
            154, 157, 118, 119, 30, 238, 239, 274,
            129, 130, 131, 138, 240, 117, 270, 271,
            38, 276, 34, 37, 35, 36, 33,
            52, 53, 54, 55, 45, 46, 88,
            5, 6, 7, 14, 15, 16, 47,
            194, 195, 196, 186, 187, 188, 189, 190, 191, 192, 193, 180, 181, 279,
            41, 51, 40, 39, 97, 268, 104, 294, 105, 273, 106, 142, 224, 225,
            164, 261, 140, 122, 170, 112, 171, 161, 162, 217, 218, 219, 241, 280, 282,
            *COMMON,
        ),
        unknown=(435, 437),
        flags={56: 2},
        commands={25: SIGNALLING, 29: TERMINAL},
    ),
}
# fmt: on


def filter_program(machine: str) -> bytes | None:
    """Return the filter as struct sock_filter[]; None for machines that are not in the table."""
    table = SYSCALL_TABLES.get(machine)
    if table is None:
        return None
    refuse, unknown = REFUSE | errno.EPERM, REFUSE | errno.ENOSYS
    code = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, table.audit), (RETURN, 0, 0, refuse)]
    code += [(LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":  # its x32 calls have different numbers
        code += [(SET, 0, 1, 0x40000000), (RETURN, 0, 0, refuse)]
    for number in table.refused:
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, refuse)]
    for number in table.unknown:
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, unknown)]
    for number, argument_index in table.flags.items():
        code += _with_argument(
            number, argument_index, [(SET, 0, 1, WRITES), (RETURN, 0, 0, refuse)]
        )
    for number, values in table.commands.items():
        steps = [step for v in values for step in ((EQUAL, 0, 1, v), (RETURN, 0, 0, refuse))]
        code += _with_argument(number, 1, steps)
    code += [(RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def _with_argument(
    number: int, argument_index: int, steps: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Return steps that check the lower half of an argument of one call. Other calls pass, and so does the
    call itself if no step ends it."""
    load = (LOAD, 0, 0, ARGUMENTS + 8 * argument_index)
    return [(EQUAL, 0, len(steps) + 2, number), load, *steps, (RETURN, 0, 0, ALLOW)]
