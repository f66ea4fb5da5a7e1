"""Keeps from children what the exporter alone needs."""

import ctypes

PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4


def keep_capabilities_from_children() -> bool:
    """Empty the ambient set (prctl(2)): this process keeps its capabilities, the programs that it starts get none.

    To be called before any thread is started, since each thread has a set of its own. False where the kernel cannot.
    """
    return bool(ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0)
