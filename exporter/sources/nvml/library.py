"""The driver's library, mapped into this process by nvidia-ml-py, which keeps it for good unless it is taken away.

A library and a kernel module of different versions do not talk (NVML_ERROR_LIB_RM_VERSION_MISMATCH), so after an
upgrade of the driver the file that is there now must be mapped instead of the one that was there when we began.
"""

# ruff: noqa: SLF001 (nvidia-ml-py has no door for this, nor has ctypes)

import _ctypes
import contextlib

import pynvml


def shut_down() -> None:
    """End one use of NVML, which also ends where the driver has no good word for it."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        with pynvml.libLoadLock:
            pynvml._nvmlLib_refcount = max(0, pynvml._nvmlLib_refcount - 1)
    unload_unused()


def unload_unused() -> None:
    """Let go of the library, unless someone else in this process uses it; the next nvmlInit maps it anew.

    No thread may be in one of its functions.
    """
    with pynvml.libLoadLock:
        if pynvml.nvmlLib is None or pynvml._nvmlLib_refcount:
            return
        library, pynvml.nvmlLib = pynvml.nvmlLib, None
        pynvml._nvmlGetFunctionPointer_cache.clear()  # they point into what is unmapped now
        with contextlib.suppress(OSError):
            _ctypes.dlclose(library._handle)
