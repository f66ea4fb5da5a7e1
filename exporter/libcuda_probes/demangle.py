"""A program that demangles the names on its stdin, one a line, and writes a line for each: an empty one if it fails.

Its argument is the directory of pycxxfilt. A workload chooses the names, and known demanglers crash or take exponential
time and memory for some. So each name has a process of its own, within limits. It is started as a script in isolated
mode, and imports nothing of this package.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_DUMPABLE = 4


def main(directory: str) -> None:
    """Demangle all names, or those for which 0.5 s is enough."""
    signal.setitimer(signal.ITIMER_REAL, 0.5)  # without a handler, the signals of timers end a process
    resource.setrlimit(resource.RLIMIT_AS, (1 << 27, 1 << 27))
    # A limit of 0 does not prevent a core dump that a program gets, such as systemd-coredump (core(5)).
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    sys.path.append(directory)
    from pycxxfilt import demangle

    for name in sys.stdin.read().splitlines():
        if not os.fork():
            try:
                signal.setitimer(signal.ITIMER_PROF, 0.01)  # CPU time; CUTLASS's longest names take 0.0003 s
                # All lines together are shorter than `child.MOST_BYTES`.
                os.write(1, (demangle(name) or "").replace("\n", " ").encode(errors="replace")[:4000])
            finally:
                os._exit(0)
        os.wait()
        os.write(1, b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
