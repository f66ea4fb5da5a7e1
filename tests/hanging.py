"""A directory that hangs, as one of a dead NFS server does: FUSE without a program that answers (fuse(4))."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

MNT_DETACH = 2


@contextlib.contextmanager
def hangs(directory: Path) -> Iterator[None]:
    """For so long, whatever is looked up in this directory gets no answer. OSError if this may not be."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"hangs", bytes(directory), b"fuse", ctypes.c_ulong(0), options):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(directory))
        yield
    finally:
        # This ends each look-up that hangs with an error.
        os.close(descriptor)
        libc.umount2(bytes(directory), MNT_DETACH)
