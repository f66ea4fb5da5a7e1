"""A program that drops all capabilities, and then runs the program that its arguments name.

A child needs it if this process, with the right to switch the user, starts a program of root. A child process may do
little between fork(2) and execve(2). setpriv(1) cannot drop permitted capabilities, and may not drop those of the
bounding set. It is started as a script in isolated mode, and imports nothing of this package.
"""

import ctypes
import os
import signal
import sys

CAPSET_VERSION = 0x20080522  # capset(2): two masks each of effective, permitted and inheritable capabilities
PR_SET_NO_NEW_PRIVS = 38  # without it, execve(2) would give root's program the capabilities of the bounding set
NOT_STARTED = 127  # the exit code of a shell that finds no program


def main(arguments: list[str]) -> int:
    """Run the program, and return only if that fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(CAPSET_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(header, none):
        sys.stderr.write(f"capabilities cannot be dropped: {os.strerror(ctypes.get_errno())}")
        return NOT_STARTED
    # Python ignores these, and execve(2) would pass that on.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(arguments[0], arguments)  # noqa: S606 (no shell is meant)
    except OSError as error:
        sys.stderr.write(f"{arguments[0]}: {error.strerror}")
    return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
