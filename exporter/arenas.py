"""The settings of glibc's malloc that keep the service's memory small (mallopt(3))."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE_BYTES = 1 << 16


def use_few_arenas() -> None:
    """Have all threads allocate from one arena, and give large pieces back to the kernel as soon as they are freed.

    glibc gives each thread an arena of its own, and keeps what was freed in each. The exporter has some 15 threads, and
    one of them at a time runs Python, so they do not wait for one another. What is large is what is published: a new
    text of all metrics, some hundred KB, whenever something changes.

    Environment variables (MALLOC_ARENA_MAX and others) would do the same, but must be set before the process starts.
    Other C libraries have no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
