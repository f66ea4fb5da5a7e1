"""Settings of glibc's malloc that reduce the service's memory (mallopt(3))."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE_BYTES = 1 << 16


def use_few_arenas() -> None:
    """Make all threads allocate from one arena, and return large blocks to the kernel when they are freed.

    By default, glibc gives each thread an arena, and each arena retains freed memory. The exporter has about 15
    threads, and only one runs Python at a time, so they do not wait for the arena. The large blocks are the published
    metrics: some hundred KB whenever something changes.

    Environment variables (MALLOC_ARENA_MAX and others) have the same effect, but only if they are set before the
    process starts. Other C libraries do not have these settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
