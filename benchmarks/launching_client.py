"""A client as a framework makes it: thousands of mappings, a hundred threads, and steps of launches.

`python launching_client.py LIBRARY` uses the stand-in libcuda at that path. A step is LAUNCHES kernels and a
synchronization; PAUSE_SECONDS follow.
"""

import ctypes
import mmap
import sys
import threading
import time

MAPPINGS, THREADS, LAUNCHES, PAUSE_SECONDS = 2_000, 100, 10, 0.1
KERNEL_NS, BLOCKS = 2_000_000, 16


def main(library: str) -> None:
    """Launch until this process is killed."""
    # Neighbors with equal rights would become one mapping.
    rights = (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)
    held = [mmap.mmap(-1, mmap.PAGESIZE, prot=rights[number % 2]) for number in range(MAPPINGS)]
    idle = threading.Event()
    for _ in range(THREADS):
        threading.Thread(target=idle.wait, daemon=True).start()
    cuda = ctypes.CDLL(library)
    function, numbers = ctypes.c_void_p(KERNEL_NS), (BLOCKS, 1, 1, 32, 1, 1, 0)
    while held:
        for _ in range(LAUNCHES):
            cuda.cuLaunchKernel(function, *numbers, None, None, None)
        cuda.cuCtxSynchronize()
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
