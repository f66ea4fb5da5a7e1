"""The driver's library, mapped into this process by nvidia-ml-py, which keeps it for good unless it is taken away.

A library and a kernel module of different versions do not talk (NVML_ERROR_LIB_RM_VERSION_MISMATCH), so after an
upgrade of the driver the file that is there now must be mapped instead of the one that was there when we began.
"""

import _ctypes
import contextlib

import pynvml


def unload() -> None:
    """Let go of the library, so that the next nvmlInit maps it anew. No thread may be in one of its functions."""
    with pynvml.libLoadLock:
        library, pynvml.nvmlLib = pynvml.nvmlLib, None
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 (pointers into what is unmapped below)
    if library is not None:
        with contextlib.suppress(OSError):
            _ctypes.dlclose(library._handle)  # noqa: SLF001 (ctypes has no other way)
