"""Take on the user, capability and system call filter of the exporter's unit, without systemd, and run a program.

    as_unit.py UID NUMBERS PROGRAM...

An ordinary user with CAP_SYS_PTRACE only. Only the system calls with these numbers (JSON; none: all) are
open and all others are refused with EPERM.
"""

import ctypes
import json
import os
import sys
from errno import EPERM

CAP_SYS_PTRACE = 19
CAPABILITY_VERSION = 0x20080522
PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 8, 22, 24, 38, 47
PR_CAP_AMBIENT_RAISE = 2
SECCOMP_MODE_FILTER, SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 2, 0x00050000, 0x7FFF0000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06

LIBC = ctypes.CDLL(None, use_errno=True)


class Instruction(ctypes.Structure):
    """`struct sock_filter`."""

    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction)))


def become(uid: int) -> None:
    """Switch to the user, with that capability."""
    for capability in range(64):
        if capability != CAP_SYS_PTRACE:
            LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _do(LIBC.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    _do(LIBC.capset(header, (ctypes.c_uint32 * 6)(*[1 << CAP_SYS_PTRACE] * 3, 0, 0, 0)))
    _do(LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_PTRACE, 0, 0))


def allow(numbers: list[int]) -> None:
    """Permit only these system calls."""
    open_ = [each for number in numbers for each in ((JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, SECCOMP_RET_ALLOW))]
    lines = [(LOAD, 0, 0, 0), *open_, (RETURN, 0, 0, SECCOMP_RET_ERRNO | EPERM)]
    instructions = (Instruction * len(lines))(*(Instruction(*each) for each in lines))
    program = Program(len(lines), instructions)
    _do(LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def _do(result: int) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def main() -> None:
    """Restrict this process, then execute the program."""
    uid, numbers, program = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    become(uid)
    _do(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if numbers:
        allow(numbers)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
