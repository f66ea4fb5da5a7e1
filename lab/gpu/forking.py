"""A client that forks and exits. Its children never use CUDA, but hold its connection: `forking.py CHILDREN`.

It prints `children PID...`, and exits 2 s later.
"""

import ctypes
import os
import sys
import time

STAYS_SECONDS = 2
CHILD_SECONDS = 300


def main(children: int) -> None:
    """Make a context with 64 MiB, and fork."""
    cuda, device, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(cuda.cuInit(0))
    _check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    _check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    _check(cuda.cuCtxSetCurrent(context))
    _check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 << 20)))
    pids = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            time.sleep(CHILD_SECONDS)
            os._exit(0)
        pids.append(pid)
    sys.stdout.write(f"children {' '.join(map(str, pids))}\n")
    sys.stdout.flush()
    time.sleep(STAYS_SECONDS)
    os._exit(0)


def _check(code: int) -> None:
    if code:
        sys.exit(f"CUDA error {code}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
