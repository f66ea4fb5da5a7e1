"""The memory arenas of the C library's malloc."""

import ctypes

M_ARENA_MAX = -8
"""The parameter of mallopt(3) that limits the number of arenas."""


def use_few_arenas() -> None:
    """Have all threads allocate from one arena. glibc gives each thread its own, and keeps what each has freed.

    The exporter has some 15 threads, and one of them at a time runs Python, so they do not wait for one another.
    MALLOC_ARENA_MAX would do the same, but must be set before the process starts. Other C libraries have no arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
